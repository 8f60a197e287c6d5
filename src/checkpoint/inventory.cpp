#include "inventory.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <set>

namespace stagecraft {
namespace {

void add_once(NamedTensors& all, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  for (const auto& [other_name, other] : all) {
    if (other_name == name && other.is_same(tensor)) return;
  }
  all.emplace_back(name, tensor);
}

}  // namespace

NamedTensors weights_of(const Pipeline& pipeline, bool all_buffers) {
  NamedTensors all;
  const bool has_masters = pipeline.masters() != nullptr;
  if (has_masters) all = pipeline.named_parameters();
  for (const Stage& stage : pipeline.stages()) {
    const std::vector<std::string>& left_out = stage.options().not_saved;
    if (!has_masters) {
      for (const auto& [name, tensor] : stage.parameters()) add_once(all, name, tensor);
    }
    for (const auto& [name, tensor] : stage.buffers()) {
      const bool is_saved = std::find(left_out.begin(), left_out.end(), name) == left_out.end();
      if (is_saved || all_buffers) add_once(all, name, tensor);
    }
  }
  return all;
}

std::vector<std::string> other_names(const Pipeline& pipeline, const std::string& parameter) {
  std::set<std::string> names;
  for (const Stage& stage : pipeline.stages()) {
    for (const auto& [other, known] : stage.options().other_names) {
      if (known == parameter) names.insert(other);
    }
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> not_saved(const Pipeline& pipeline) {
  std::vector<std::string> names;
  for (const Stage& stage : pipeline.stages()) {
    names.insert(names.end(), stage.options().not_saved.begin(), stage.options().not_saved.end());
  }
  return names;
}

NamedTensors optimized(const Pipeline& pipeline, const torch::optim::Optimizer& optimizer) {
  std::set<const void*> members;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) members.insert(parameter.unsafeGetTensorImpl());
  }
  NamedTensors all;
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    if (parameter.defined() && members.contains(parameter.unsafeGetTensorImpl())) add_once(all, name, parameter);
  }
  return all;
}

bool has_strangers(const Pipeline& pipeline, const torch::optim::Optimizer& optimizer) {
  std::set<const void*> known;
  for (const at::Tensor& parameter : pipeline.parameters()) known.insert(parameter.unsafeGetTensorImpl());
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!known.contains(parameter.unsafeGetTensorImpl())) return true;
    }
  }
  return false;
}

at::Tensor in_memory(const at::Tensor& tensor) {
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

std::vector<std::vector<std::string>> gather(World& world, const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + '\0';
  std::vector<std::vector<std::string>> all;
  const auto during = world.everyone().during("the list of what a checkpoint holds");
  for (const std::string& of_rank : world.everyone().all_gather(text)) {
    std::vector<std::string>& said = all.emplace_back();
    for (std::size_t begin = 0; begin < of_rank.size();) {
      const std::size_t end = of_rank.find('\0', begin);
      said.push_back(of_rank.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return all;
}

Faults merged(const std::vector<std::vector<std::string>>& by_rank) {
  Faults faults;
  std::set<std::string> seen;
  for (const auto& of_rank : by_rank) {
    for (const std::string& fault : of_rank) {
      if (seen.insert(fault).second) faults.add(fault);
    }
  }
  return faults;
}

}  // namespace stagecraft
