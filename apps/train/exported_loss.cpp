#include "exported_loss.h"

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/graph/ports.h"

namespace stagecraft::train {
namespace {

/// What is wrong with the inputs; empty if they are output and target.
std::string input_fault(const std::vector<ModelInput>& inputs) {
  std::string names;
  for (const ModelInput& input : inputs) names += (names.empty() ? "" : ", ") + input.name;
  if (inputs.size() != 2) {
    return "it takes " + std::to_string(inputs.size()) + " inputs (" + names +
           "), and a loss takes two: export a function of output and target";
  }
  if (inputs[1].leaves.size() != 1 || !inputs[1].leaves.front().tensor)
    return "its second input is not a tensor: export a function of output and target";
  return {};
}

/// What is wrong with the result; empty if it is one number.
std::string result_fault(const graph::Program& program) {
  const std::vector<graph::Port> ports = graph::output_ports(program);
  const graph::TensorType* const result = ports.size() == 1 ? graph::tensor_of(program, ports.front()) : nullptr;
  if (result == nullptr || !graph::is_differentiable(result->element))
    return "it does not return one floating-point tensor: return the loss alone";
  for (const graph::Size& size : result->sizes) {
    if (!size.fixed() || size.value != 1)
      return "it returns a tensor " + graph::text(result->sizes) + ": reduce it to one number, with mean() for example";
  }
  return {};
}

std::string trained_parameters(const graph::Program& program) {
  std::string names;
  for (const graph::Input& input : program.inputs) {
    if (input.kind == graph::Input::Kind::kParameter && input.stored.requires_grad)
      names += (names.empty() ? "" : ", ") + input.name;
  }
  return names;
}

/// The value with its floating-point tensors in the types that the input has.
Value in_types_of(const ModelInput& input, const Value& value) {
  auto leaf = input.leaves.begin();
  return value.map_tensors([&](const at::Tensor& tensor) {
    leaf = std::find_if(leaf, input.leaves.end(), [](const auto& one) { return one.tensor.has_value(); });
    if (leaf == input.leaves.end()) return tensor;
    const at::ScalarType type = (leaf++)->tensor->dtype;
    return tensor.is_floating_point() && at::isFloatingType(type) ? tensor.to(type) : tensor;
  });
}

}  // namespace

ExportedLoss::ExportedLoss(const std::string& path, at::Device device) : path_(path) {
  const Pipe pipe(path);
  inputs_ = pipe.inputs();
  static_rows_ = pipe.static_rows();
  std::string fault = input_fault(inputs_);
  if (fault.empty()) fault = result_fault(pipe.program());
  if (const std::string names = trained_parameters(pipe.program()); fault.empty() && !names.empty()) {
    fault = "it has parameters (" + names + "), which nothing would train: make them buffers, or part of the model";
  }
  if (!fault.empty()) throw FileError(path, "cannot be the loss: " + fault);
  for (const graph::Port& port : graph::input_ports(pipe.program())) {
    const graph::TensorType* const type = graph::tensor_of(pipe.program(), port);
    types_.push_back(type == nullptr ? graph::TensorType() : *type);
  }
  stage_ = std::make_shared<Stage>(pipe.build_stage(0, device));
}

at::Tensor ExportedLoss::operator()(const Value& output, const at::Tensor& target) const {
  const ValueList arguments = {in_types_of(inputs_[0], output), in_types_of(inputs_[1], target)};
  const ValueDict keywords;
  const Value result = stage_->forward({StageId(0), MicrobatchId(0), arguments, keywords});
  return result.is_list() ? result.list().at(0).tensor() : result.tensor();
}

}  // namespace stagecraft::train
