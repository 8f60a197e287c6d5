#include "model_check.h"

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/core/name_pattern.h"
#include "stagecraft/core/text.h"
#include "stagecraft/graph/training.h"

namespace stagecraft::train {
namespace {

using graph::Input;
using graph::Node;
using graph::Program;

bool is_frozen(const Options& options, const Input& input) { return fits_any(options.freeze, input.name); }

bool is_trained(const Options& options, const Input& input) {
  return input.kind == Input::Kind::kParameter && input.stored.requires_grad && !is_frozen(options, input);
}

bool is_complex(graph::ElementType type) {
  return type == graph::ElementType::kComplexHalf || type == graph::ElementType::kComplexFloat ||
         type == graph::ElementType::kComplexDouble;
}

/// The parameter whose gradient is sparse because of the node; null if there is none.
const Input* sparse_parameter(const Options& options, const Program& program, const Node& node) {
  if (!node.target.starts_with("aten::embedding")) return nullptr;
  const graph::Argument* const sparse = node.argument("sparse");
  const graph::Argument* const weight = node.argument("weight");
  const auto* const flag = sparse == nullptr ? nullptr : std::get_if<bool>(sparse);
  const auto* const use = weight == nullptr ? nullptr : std::get_if<graph::Use>(weight);
  if (flag == nullptr || !*flag || use == nullptr) return nullptr;
  const auto found = std::find_if(program.inputs.begin(), program.inputs.end(), [&](const Input& input) {
    return input.value == use->value && is_trained(options, input);
  });
  return found == program.inputs.end() ? nullptr : &*found;
}

/// What the optimizer cannot train as Python's does.
Faults optimizer_faults(const Options& options, const Program& program) {
  Faults faults;
  const bool is_plain = options.optimizer == "sgd" && options.momentum == 0 && options.weight_decay <= 0;
  graph::for_each_node(program.nodes, [&](const Node& node) {
    const Input* const sparse = sparse_parameter(options, program, node);
    if (sparse != nullptr && !is_plain) {
      faults.add("the gradient of '" + sparse->name + "' is sparse, which " + options.optimizer +
                 (options.optimizer == "sgd" ? " with momentum or weight decay" : "") +
                 " does not take: give --optimizer sgd without these, or export the embedding with sparse=False");
    } else if (sparse != nullptr && (options.replicas > 1 || options.clip_norm > 0 || options.clip_value > 0)) {
      faults.add("the gradient of '" + sparse->name +
                 "' is sparse, which replicas and clipping do not take: leave them out, or export the embedding with "
                 "sparse=False");
    }
  });
  if (options.optimizer == "sgd") return faults;
  for (const Input& input : program.inputs) {
    if (is_trained(options, input) && is_complex(input.stored.element)) {
      faults.add("the parameter '" + input.name + "' is complex, which " + options.optimizer +
                 " of LibTorch updates otherwise than Python's: give --optimizer sgd, or keep it as a real parameter "
                 "(torch.view_as_complex in the model)");
    }
  }
  return faults;
}

}  // namespace

std::string check_model(const Options& options, const Pipe& pipe, const Objective& objective) {
  const Program& program = pipe.program();
  const Faults faults = optimizer_faults(options, program);
  if (!faults.empty()) throw InvalidArgument(faults.text());
  graph::Untrained untrained = graph::untrained_parameters(program, objective.outputs());
  if (untrained.all) throw InvalidArgument("training would change no parameter: " + graph::text(program, untrained));
  for (std::vector<int>* const list : {&untrained.without_gradients, &untrained.unused}) {
    std::erase_if(*list,
                  [&](int input) { return is_frozen(options, program.inputs[static_cast<std::size_t>(input)]); });
  }
  return graph::text(program, untrained);
}

}  // namespace stagecraft::train
