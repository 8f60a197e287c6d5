#include "interpreter.h"

#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <optional>

#include "layer_numbers.h"
#include "stagecraft/core/error.h"
#include "stagecraft/stage/random.h"
#include "torch_types.h"

namespace stagecraft {
namespace {

using c10::IValue;

/// The number for random numbers of a node in a body: another one in each iteration, the same wherever the program is
/// cut.
std::int64_t inner_layer(std::uint64_t body, int node) {
  return static_cast<std::int64_t>(combined(body, static_cast<std::uint64_t>(node)));
}

/// While it lives, sets gradient mode and autocast as a region of the program asks for.
class Surroundings {
 public:
  Surroundings(const graph::Context& context, at::DeviceType device) {
    if (context.gradients) gradients_.emplace(*context.gradients);
    if (!context.autocast) return;
    device_ = device;
    was_cached_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    was_enabled_ = at::autocast::is_autocast_enabled(*device_);
    was_type_ = at::autocast::get_autocast_dtype(*device_);
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(*device_, context.autocast->enabled);
    if (context.autocast->element != graph::ElementType::kUnknown) {
      at::autocast::set_autocast_dtype(*device_, scalar_type(context.autocast->element));
    }
  }
  ~Surroundings() {
    if (!device_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(*device_, was_enabled_);
    at::autocast::set_autocast_dtype(*device_, was_type_);
    at::autocast::set_autocast_cache_enabled(was_cached_);
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;

 private:
  std::optional<at::AutoGradMode> gradients_;
  std::optional<at::DeviceType> device_;
  bool was_enabled_ = false;
  bool was_cached_ = false;
  at::ScalarType was_type_ = at::kFloat;
};

at::Tensor tensor_of(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

const IValue& item(const Fill& fill, std::size_t i, const std::vector<IValue>& frame) {
  return fill.slots[i] >= 0 ? frame[static_cast<std::size_t>(fill.slots[i])] : fill.fixed[i];
}

IValue filled(const Fill& fill, std::vector<IValue>& frame) {
  switch (fill.kind) {
    case Fill::Kind::kValue: {
      IValue& slot = frame[static_cast<std::size_t>(fill.slot)];
      return fill.last ? std::move(slot) : slot;
    }
    case Fill::Kind::kReal:
      return frame[static_cast<std::size_t>(fill.slot)].toScalar().toDouble();
    case Fill::Kind::kTensorOfNumber:
      return tensor_of(frame[static_cast<std::size_t>(fill.slot)]);
    case Fill::Kind::kTensors: {
      c10::List<at::Tensor> list;
      list.reserve(fill.slots.size());
      for (std::size_t i = 0; i < fill.slots.size(); ++i) list.push_back(item(fill, i, frame).toTensor());
      return list;
    }
    case Fill::Kind::kOptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(fill.slots.size());
      for (std::size_t i = 0; i < fill.slots.size(); ++i) {
        const IValue& each = item(fill, i, frame);
        list.push_back(each.isNone() ? std::optional<at::Tensor>() : each.toTensor());
      }
      return list;
    }
    case Fill::Kind::kIntegers: {
      c10::List<std::int64_t> list;
      list.reserve(fill.slots.size());
      for (std::size_t i = 0; i < fill.slots.size(); ++i) list.push_back(item(fill, i, frame).toInt());
      return list;
    }
    case Fill::Kind::kInBodies:
      return frame[static_cast<std::size_t>(fill.slot)];
  }
  throw InternalError("an argument of an unknown kind");
}

Value as_value(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  return {};
}

IValue as_ivalue(const Value& value) {
  const Value::Held& held = value.held();
  if (const auto* tensor = std::get_if<at::Tensor>(&held)) return *tensor;
  if (const auto* integer = std::get_if<std::int64_t>(&held)) return *integer;
  if (const auto* real = std::get_if<double>(&held)) return *real;
  if (const auto* flag = std::get_if<bool>(&held)) return *flag;
  return {};
}

}  // namespace

Interpreter::Interpreter(std::shared_ptr<const graph::Program> program, graph::StageGraph stage,
                         const LoadedTensors& loaded, at::Device device, bool is_last)
    : program_(std::move(program)),
      stage_(std::move(stage)),
      is_last_(is_last),
      device_(device.type()),
      loaded_(program_->values.size()),
      compiled_(compile_stage(*program_, stage_, loaded, device, is_last)) {
  for (const auto& [input, tensor] : loaded) {
    loaded_[static_cast<std::size_t>(program_->inputs[static_cast<std::size_t>(input)].value)] = tensor;
  }
  for (const graph::ValueId value : stage_.receives) {
    copied_.push_back(std::find(stage_.copies.begin(), stage_.copies.end(), value) != stage_.copies.end());
  }
}

Interpreter::Seen Interpreter::look_at(const at::Tensor& source) {
  return {source.has_storage() ? source.storage().data() : nullptr, source._version()};
}

std::uint64_t Interpreter::version() const {
  std::uint64_t hash = 0;
  for (const at::Tensor& source : compiled_.sources) {
    const Seen seen = look_at(source);
    hash = hash * 0x9e3779b97f4a7c15ULL + reinterpret_cast<std::uintptr_t>(seen.data) + 1;
    hash = hash * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(seen.version) + 1;
  }
  return hash;
}

bool Interpreter::sources_changed() const {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (look_at(compiled_.sources[i]) != seen_[i]) return true;
  }
  return false;
}

/// Computes the constants, again if a buffer that they depend on has been loaded or changed.
void Interpreter::make_constants() {
  if (have_constants_ && !sources_changed()) return;
  const at::NoGradGuard no_graph;
  Frame frame(static_cast<std::size_t>(compiled_.slots));
  execute(compiled_.constants, frame, {});
  constants_.clear();
  for (const std::int32_t slot : compiled_.kept) constants_.push_back(frame[static_cast<std::size_t>(slot)]);
  seen_.clear();
  for (const at::Tensor& source : compiled_.sources) seen_.push_back(look_at(source));
  have_constants_ = true;
}

ValueList Interpreter::run(const ValueList& received) {
  make_constants();
  Frame frame(static_cast<std::size_t>(compiled_.slots));
  for (std::size_t i = 0; i < constants_.size(); ++i)
    frame[static_cast<std::size_t>(compiled_.kept[i])] = constants_[i];
  for (std::size_t i = 0; i < compiled_.received.size(); ++i) {
    if (compiled_.received[i] < 0) continue;
    const bool copy = copied_[i] && received[i].is_tensor();
    frame[static_cast<std::size_t>(compiled_.received[i])] =
        copy ? IValue(received[i].tensor().clone()) : as_ivalue(received[i]);
  }
  execute(compiled_.instructions, frame, {});
  ValueList results;
  if (is_last_) {
    for (const graph::Argument& output : program_->outputs) results.push_back(result(output, frame));
  } else {
    for (const graph::ValueId value : stage_.sends) results.push_back(result(graph::Use{value}, frame));
  }
  return results;
}

Value Interpreter::result(const graph::Argument& output, const Frame& frame) const {
  if (const auto* use = std::get_if<graph::Use>(&output); use != nullptr && use->value != graph::kNoValue) {
    const auto value = static_cast<std::size_t>(use->value);
    if (loaded_[value].defined()) return loaded_[value];
    return as_value(frame[static_cast<std::size_t>(compiled_.slot_of[value])]);
  }
  if (const auto* integer = std::get_if<std::int64_t>(&output)) return *integer;
  if (const auto* real = std::get_if<double>(&output)) return *real;
  if (const auto* flag = std::get_if<bool>(&output)) return *flag;
  if (const auto* text = std::get_if<std::string>(&output)) return *text;
  return {};
}

std::string Interpreter::describe(const ModelInstruction& instruction) const {
  return instruction.source == nullptr ? "an update of a buffer" : program_->describe(*instruction.source);
}

void Interpreter::execute(const std::vector<ModelInstruction>& instructions, Frame& frame,
                          const Surrounding& where) const {
  const bool evaluation = evaluation_;
  std::vector<IValue> stack;
  std::unique_ptr<Surroundings> surroundings;
  int context = where.context;
  for (const ModelInstruction& instruction : instructions) {
    if (instruction.context != context) {
      surroundings.reset();
      context = instruction.context;
      if (context != where.context) {
        surroundings = std::make_unique<Surroundings>(program_->contexts[static_cast<std::size_t>(context)], device_);
      }
    }
    if (!(evaluation && instruction.skipped_in_evaluation)) {
      stack.assign(instruction.arguments.begin(), instruction.arguments.end());
      for (const Fill& fill : instruction.fills) stack[fill.argument] = filled(fill, frame);
      if (evaluation) {
        for (const auto& [argument, value] : instruction.in_evaluation) stack[argument] = value;
      }
      const std::int64_t layer = where.layer ? inner_layer(*where.layer, instruction.node) : instruction.node;
      call(instruction, frame, stack, layer);
    }
    for (const std::int32_t slot : instruction.frees) frame[static_cast<std::size_t>(slot)] = IValue();
  }
}

void Interpreter::call(const ModelInstruction& instruction, Frame& frame, std::vector<IValue>& stack,
                       std::int64_t layer) const {
  try {
    switch (instruction.kind) {
      case ModelInstruction::Kind::kOperator: {
        const RandomLayer random(layer);  // the same numbers wherever the program is cut
        instruction.operation->callBoxed(stack);
        break;
      }
      case ModelInstruction::Kind::kSize:
        stack = {IValue(stack[0].toTensor().size(stack[1].toInt()))};
        break;
      case ModelInstruction::Kind::kNumber:
        stack = {instruction.number(stack)};
        break;
      case ModelInstruction::Kind::kControlFlow:
        run_control_flow(instruction, frame, stack, layer);
        break;
    }
  } catch (const c10::Error& error) {
    throw Error(describe(instruction) + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error(describe(instruction) + ": " + error.what());
  }
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    const ModelInstruction::Result& wanted = instruction.results[i];
    if (!wanted.list) {
      if (wanted.slots[0] >= 0) frame[static_cast<std::size_t>(wanted.slots[0])] = std::move(stack[i]);
      continue;
    }
    const c10::List<at::Tensor> list = stack[i].toTensorList();
    for (std::size_t k = 0; k < wanted.slots.size() && k < list.size(); ++k) {
      if (wanted.slots[k] >= 0) frame[static_cast<std::size_t>(wanted.slots[k])] = list.get(k);
    }
  }
}

}  // namespace stagecraft
