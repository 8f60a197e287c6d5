#include "compile.h"

#include <algorithm>
#include <map>
#include <set>

#include "arguments.h"
#include "last_uses.h"
#include "own_operators.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/graph/operators.h"

namespace stagecraft {
namespace {

using graph::kNoValue;
using graph::Node;
using graph::ValueId;

std::optional<c10::OperatorHandle> find_operator(const std::string& target) {
  const std::size_t space = target.find("::");
  if (space == std::string::npos) return std::nullopt;
  const std::size_t dot = target.find('.', space);
  const std::string name = target.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : target.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({name, overload});
}

/// Sets the arguments that these operators get in evaluation: the export has fixed them for training.
void prepare_evaluation(const Node& node, const c10::FunctionSchema& schema, ModelInstruction& instruction) {
  const auto set = [&](const char* name, const c10::IValue& value) {
    const std::optional<int> position = schema.argumentIndexWithName(name);
    if (position) instruction.in_evaluation.emplace_back(static_cast<std::uint32_t>(*position), value);
  };
  // Recurrent layers have dropout between them.
  const bool recurrent = node.target.starts_with("aten::lstm") || node.target.starts_with("aten::gru") ||
                         node.target.starts_with("aten::rnn_");
  if (recurrent || node.target.find("dropout") != std::string::npos) set("train", false);
  const graph::Argument* mean = node.argument("running_mean");
  const bool tracks = mean != nullptr && std::holds_alternative<graph::Use>(*mean);
  if (tracks && node.target.starts_with("aten::instance_norm")) set("use_input_stats", false);
  if (node.target.find("batch_norm") != std::string::npos || node.target.starts_with("aten::rrelu"))
    set("training", false);
  set("dropout_p", 0.0);
}

/// Indices of the arguments that nothing in a body of the node uses.
std::vector<std::size_t> unused_arguments(const Node& node, const graph::Body& body) {
  std::set<ValueId> used;
  graph::for_each_node(body.nodes, [&](const Node& inner) {
    for (const ValueId value : inner.uses()) used.insert(value);
  });
  for (const graph::Argument& output : body.outputs) {
    if (const auto* use = std::get_if<graph::Use>(&output)) used.insert(use->value);
  }
  const std::size_t first = node.arguments.size() - body.formals.size();
  std::vector<std::size_t> unused;
  for (std::size_t i = 0; i < body.formals.size(); ++i) {
    const auto* use = std::get_if<graph::Use>(&node.arguments[first + i].value);
    const ValueId inside = body.formals[i] != kNoValue ? body.formals[i] : use != nullptr ? use->value : kNoValue;
    if (use != nullptr && !used.contains(inside)) unused.push_back(first + i);
  }
  return unused;
}

/// Compiles a stage in one pass over its nodes.
class StageCompiler {
 public:
  StageCompiler(const graph::Program& program, const graph::StageGraph& stage, const LoadedTensors& loaded,
                at::Device device)
      : program_(program), stage_(stage), device_(device) {
    result_.slot_of.assign(program.values.size(), -1);
    loaded_.resize(program.values.size());
    for (const auto& [input, tensor] : loaded) {
      const graph::Input& own = program.inputs[static_cast<std::size_t>(input)];
      loaded_[static_cast<std::size_t>(own.value)] = tensor;
      if (own.name.ends_with("num_batches_tracked")) counters_.insert(own.value);
      if (own.kind == graph::Input::Kind::kBuffer || own.kind == graph::Input::Kind::kConstant)
        steady_.insert(own.value);
    }
    changed_ = graph::changed_values(program);
    std::erase_if(steady_, [&](ValueId value) { return changed_[static_cast<std::size_t>(value)]; });
  }

  Compiled run(bool is_last) {
    for (const ValueId value : stage_.receives) result_.received.push_back(new_slot(value));
    for (const graph::SizeOf& size : stage_.sizes) add_size(size);
    for (const int node : stage_.nodes) add_node(node);
    for (const graph::Update& update : stage_.updates) add_update(update);
    if (!faults_.empty()) throw InvalidArgument(faults_.text());
    find_last_uses(is_last);
    keep_constants();
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::size_t slots() const { return static_cast<std::size_t>(result_.slots); }
  [[nodiscard]] std::int32_t slot_of(ValueId value) const { return result_.slot_of[static_cast<std::size_t>(value)]; }

  std::int32_t new_slot(ValueId value) {
    if (value == kNoValue) return -1;
    value_in_.push_back(value);
    return result_.slot_of[static_cast<std::size_t>(value)] = result_.slots++;
  }

  void add_size(const graph::SizeOf& size) {
    ModelInstruction instruction;
    instruction.kind = ModelInstruction::Kind::kSize;
    instruction.arguments = {c10::IValue(), c10::IValue(static_cast<std::int64_t>(size.dimension))};
    instruction.fills.push_back({Fill::Kind::kValue, false, 0, slot_of(size.tensor)});
    instruction.results.push_back({false, {new_slot(size.number)}});
    instruction.node = -1;
    result_.instructions.push_back(std::move(instruction));
  }

  void add_node(int index) {
    const Node& node = program_.nodes[static_cast<std::size_t>(index)];
    ModelInstruction instruction = compiled(node, index);
    if (is_constant(node)) {
      for (const ValueId value : node.makes()) steady_.insert(value);
      for (const ValueId value : node.uses()) {
        const at::Tensor& source = loaded_[static_cast<std::size_t>(value)];
        if (source.defined()) result_.sources.push_back(source);
      }
      result_.constants.push_back(std::move(instruction));
    } else {
      result_.instructions.push_back(std::move(instruction));
    }
  }

  ModelInstruction compiled(const Node& node, int index) {
    ModelInstruction instruction;
    instruction.source = &node;
    instruction.node = index;
    instruction.context = node.context;
    const ArgumentMaker::Find find = [&](ValueId value) {
      return ArgumentMaker::Place{loaded_[static_cast<std::size_t>(value)], slot_of(value)};
    };
    const ArgumentMaker maker(find, device_);
    try {
      if (node.is_control_flow()) {
        add_control_flow(node, maker, instruction);
      } else {
        resolve(node, maker, instruction);
      }
    } catch (const InvalidArgument& error) {
      faults_.add(program_.describe(node) + " " + error.what());
    }
    for (const graph::Result& made : node.results) {
      ModelInstruction::Result& own = instruction.results.emplace_back();
      own.list = made.list;
      for (const ValueId value : made.values) own.slots.push_back(new_slot(value));
    }
    return instruction;
  }

  void add_control_flow(const Node& node, const ArgumentMaker& maker, ModelInstruction& instruction) {
    auto control = std::make_shared<ControlFlow>();
    const bool branch = node.target == "higher_order::cond";
    control->kind = branch                                      ? ControlFlow::Kind::kBranch
                    : node.target == "higher_order::while_loop" ? ControlFlow::Kind::kLoop
                                                                : ControlFlow::Kind::kScan;
    control->carried = static_cast<std::size_t>(node.carried);
    control->sliced = static_cast<std::size_t>(node.sliced);
    instruction.kind = ModelInstruction::Kind::kControlFlow;
    std::vector<bool> given(node.arguments.size(), false);  // to a formal of some body, or as the predicate
    if (branch) given[0] = true;
    for (const graph::Body& body : node.bodies) {
      for (std::size_t i = 0; i < body.formals.size(); ++i) {
        if (body.formals[i] != kNoValue) given[i + (branch ? 1 : 0)] = true;
      }
    }
    // A carried value that no body uses is still the result of a loop without iterations.
    for (std::size_t i = 0; i < control->carried + control->sliced; ++i) given[i] = true;
    maker.make_operands(node, given, instruction);
    for (const graph::Body& body : node.bodies) {
      control->bodies.push_back(compiled(body));
      control->bodies.back().unused = unused_arguments(node, body);
    }
    instruction.control = std::move(control);
  }

  CompiledBody compiled(const graph::Body& body) {
    CompiledBody result;
    const std::size_t first_slot = slots();
    for (const ValueId value : body.formals) result.formals.push_back(new_slot(value));
    for (std::size_t i = 0; i < body.nodes.size(); ++i) {
      result.instructions.push_back(compiled(body.nodes[i], static_cast<int>(i)));
    }
    std::vector<std::int32_t> kept;
    for (const graph::Argument& output : body.outputs) {
      CompiledBody::Output& own = result.outputs.emplace_back();
      const auto* use = std::get_if<graph::Use>(&output);
      if (use == nullptr) {
        own.fixed = ArgumentMaker::literal(output);
      } else if (use->value != kNoValue && loaded_[static_cast<std::size_t>(use->value)].defined()) {
        own.fixed = loaded_[static_cast<std::size_t>(use->value)];
      } else if (use->value != kNoValue) {
        own.slot = slot_of(use->value);
      }
      kept.push_back(own.slot);
    }
    // Values from outside are needed in the next iteration, and perhaps after the last.
    std::vector<bool> own(slots(), false);
    std::fill(own.begin() + static_cast<std::ptrdiff_t>(first_slot), own.end(), true);
    const std::vector<std::ptrdiff_t> last = free_after_last_use(result.instructions, kept, own);
    for (std::int32_t& slot : result.formals) {
      if (slot >= 0 && last[static_cast<std::size_t>(slot)] == kNeverUsed) slot = -1;
    }
    for (const std::int32_t slot : kept) {
      if (slot >= 0 && own[static_cast<std::size_t>(slot)]) result.frees.push_back(slot);
    }
    return result;
  }

  void resolve(const Node& node, const ArgumentMaker& maker, ModelInstruction& instruction) const {
    const graph::Argument* dimension = node.argument("dim");
    const auto* tensor = node.arguments.empty() ? nullptr : std::get_if<graph::Use>(&node.arguments.front().value);
    if (node.target == "aten::sym_size.int" && dimension != nullptr &&
        std::holds_alternative<std::int64_t>(*dimension) && tensor != nullptr &&
        !loaded_[static_cast<std::size_t>(tensor->value)].defined()) {
      instruction.kind = ModelInstruction::Kind::kSize;
      instruction.arguments = {c10::IValue(), c10::IValue(std::get<std::int64_t>(*dimension))};
      instruction.fills.push_back({Fill::Kind::kValue, false, 0, slot_of(tensor->value)});
      return;
    }
    if (graph::computes_number(node)) {
      instruction.kind = ModelInstruction::Kind::kNumber;
      instruction.number = find_number_operation(node.target);
      if (instruction.number == nullptr) throw InvalidArgument("is an operation on sizes that is not supported");
      maker.make_numbers(node, instruction);
      return;
    }
    instruction.operation = find_operator(node.target);
    if (!instruction.operation) {
      throw InvalidArgument("is an operator that this LibTorch does not have: " +
                            graph::remedy_for_missing(node.target));
    }
    const c10::FunctionSchema& schema = instruction.operation->schema();
    maker.make(node, schema, instruction);
    prepare_evaluation(node, schema, instruction);
    // Only numbers have to be converted to tensors.
    for (Fill& fill : instruction.fills) {
      if (fill.kind == Fill::Kind::kTensorOfNumber && is_tensor_slot(fill.slot)) fill.kind = Fill::Kind::kValue;
    }
    const std::vector<ValueId> changes = graph::effects_of(node).changes;
    instruction.skipped_in_evaluation =
        !changes.empty() &&
        std::all_of(changes.begin(), changes.end(), [&](ValueId value) { return counters_.contains(value); });
    if (schema.returns().size() != node.results.size()) {
      throw InvalidArgument("gives " + std::to_string(schema.returns().size()) + " results, but the program names " +
                            std::to_string(node.results.size()));
    }
  }

  [[nodiscard]] bool is_tensor_slot(std::int32_t slot) const {
    return slot < 0 || program_.values[static_cast<std::size_t>(value_in_[static_cast<std::size_t>(slot)])].is_tensor();
  }

  void add_update(const graph::Update& update) {
    const graph::Input& buffer = program_.inputs[static_cast<std::size_t>(update.input)];
    ModelInstruction instruction;
    instruction.operation = find_operator("aten::copy_");
    instruction.node = -1;
    instruction.arguments = {loaded_[static_cast<std::size_t>(buffer.value)], c10::IValue(), false};
    instruction.fills.push_back({Fill::Kind::kValue, false, 1, slot_of(update.value)});
    instruction.results.push_back({false, {-1}});
    instruction.skipped_in_evaluation = buffer.name.ends_with("num_batches_tracked") ||
                                        buffer.name.ends_with("running_mean") || buffer.name.ends_with("running_var");
    result_.instructions.push_back(std::move(instruction));
  }

  /// Whether the results of a node never change and are worth keeping: computed from literals and constant tensors, not
  /// random, and not too large.
  [[nodiscard]] bool is_constant(const Node& node) const {
    constexpr std::int64_t kLargest = 16 << 20;
    const std::vector<ValueId> used = node.uses();
    const std::vector<ValueId> made = node.makes();
    if (made.empty() || graph::effects_of(node).random) return false;
    return std::all_of(used.begin(), used.end(), [&](ValueId value) { return steady_.contains(value); }) &&
           std::none_of(made.begin(), made.end(), [&](ValueId value) {
             return changed_[static_cast<std::size_t>(value)] ||
                    program_.values[static_cast<std::size_t>(value)].tensor.bytes() > kLargest;
           });
  }

  /// Frees slots after their last use; those of the results, and constants, live until the end.
  void find_last_uses(bool is_last) {
    std::vector<std::int32_t> results;
    for (const ValueId value : stage_.sends) results.push_back(slot_of(value));
    if (is_last) {
      for (const graph::Argument& output : program_.outputs) {
        if (const auto* use = std::get_if<graph::Use>(&output); use != nullptr && use->value != kNoValue)
          results.push_back(slot_of(use->value));
      }
    }
    last_ = free_after_last_use(result_.instructions, results, std::vector<bool>(slots(), true));
    for (std::int32_t& slot : result_.received) {
      if (slot >= 0 && last_[static_cast<std::size_t>(slot)] == kNeverUsed) slot = -1;
    }
  }

  /// Keeps the constants that instructions or results use.
  void keep_constants() {
    for (const ModelInstruction& instruction : result_.constants) {
      for (const ModelInstruction::Result& made : instruction.results) {
        for (const std::int32_t slot : made.slots) {
          if (slot >= 0 && last_[static_cast<std::size_t>(slot)] >= 0) result_.kept.push_back(slot);
        }
      }
    }
  }

  const graph::Program& program_;
  const graph::StageGraph& stage_;
  at::Device device_;
  Compiled result_;
  std::vector<at::Tensor> loaded_;  // by value
  std::vector<ValueId> value_in_;   // by slot
  std::vector<bool> changed_;       // by value
  std::set<ValueId> counters_;
  std::set<ValueId> steady_;  // constants, and values computed only from them
  Faults faults_;
  std::vector<std::ptrdiff_t> last_;
};

}  // namespace

Compiled compile_stage(const graph::Program& program, const graph::StageGraph& stage, const LoadedTensors& loaded,
                       at::Device device, bool is_last) {
  register_own_operators();
  return StageCompiler(program, stage, loaded, device).run(is_last);
}

void require_operators(const graph::Program& program) {
  register_own_operators();
  std::map<std::string, graph::MissingOperator> missing;
  std::string where;
  graph::for_each_node(program.nodes, [&](const Node& node) {
    const bool known = node.is_control_flow()         ? true
                       : graph::computes_number(node) ? find_number_operation(node.target) != nullptr
                                                      : find_operator(node.target).has_value();
    if (known) return;
    if (where.empty()) where = program.describe(node);
    graph::MissingOperator& own =
        missing.try_emplace(node.target, graph::MissingOperator{node.target, 0}).first->second;
    ++own.nodes;
  });
  if (missing.empty()) return;
  std::vector<graph::MissingOperator> all;
  for (const auto& [name, own] : missing) all.push_back(own);
  throw InvalidArgument("operators that LibTorch does not have, the first in " + where + ": " +
                        graph::missing_text(all));
}

}  // namespace stagecraft
