#include "tied_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

const at::Tensor* find_parameter(const Stage& stage, const std::string& name) {
  for (const auto& [own, tensor] : stage.parameters()) {
    if (own == name) return &tensor;
  }
  return nullptr;
}

}  // namespace

void check_ties(const std::vector<Stage>& stages, const std::vector<Tie>& ties, const Placement& placement) {
  for (const Tie& tie : ties) {
    const std::string what = "the tie of '" + tie.parameter + "' ";
    if (tie.stages.size() < 2) throw InvalidArgument(what + "names fewer than two stages: leave it out");
    for (const StageId stage : tie.stages) {
      if (!placement.contains(stage)) {
        throw InvalidArgument(what + "names stage " + std::to_string(stage.value) + ", but there are stages 0 to " +
                              std::to_string(placement.stages() - 1));
      }
      for (const Stage& own : stages) {
        if (own.index() == stage && find_parameter(own, tie.parameter) == nullptr) {
          throw InvalidArgument(what + "names stage " + std::to_string(stage.value) + ", which has no such parameter");
        }
      }
    }
  }
}

TiedParameters::TiedParameters(World& world, const std::vector<Stage>& stages, const std::vector<Tie>& ties,
                               const Placement& placement) {
  for (const Tie& tie : ties) {
    std::vector<RankId> ranks;
    Shared own;
    own.parameter = tie.parameter;
    own.sum_text = "the sum of the gradients of the tied parameter '" + tie.parameter + "'";
    for (const StageId stage : tie.stages) {
      const RankId rank = placement.rank_of(stage);
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
      if (rank != world.rank()) continue;
      for (std::size_t place = 0; place < stages.size(); ++place) {
        const Stage& here = stages[place];
        if (here.index() != stage) continue;
        places_.push_back(place);
        const at::Tensor& tensor = *find_parameter(here, tie.parameter);
        const bool is_known = std::any_of(own.tensors.begin(), own.tensors.end(),
                                          [&](const at::Tensor& other) { return other.is_same(tensor); });
        if (!is_known) own.tensors.push_back(tensor);
      }
    }
    if (ranks.size() > 1) own.group = world.some_of_pipeline(ranks, "the ranks with '" + tie.parameter + "'");
    if (own.group || own.tensors.size() > 1) shared_.push_back(std::move(own));
  }
}

void TiedParameters::make_equal() {
  const at::NoGradGuard no_graph;
  for (Shared& shared : shared_) {
    if (shared.group) {
      const std::string what = "the first values of the tied parameter '" + shared.parameter + "'";
      const auto during = shared.group->during(what);
      shared.group->broadcast_into(shared.tensors.front(), 0);
    }
    for (std::size_t i = 1; i < shared.tensors.size(); ++i) shared.tensors[i].copy_(shared.tensors.front());
  }
}

TiedParameters::Aside::~Aside() {
  const at::NoGradGuard no_graph;
  for (Kept& kept : kept_) {
    at::Tensor& fresh = kept.parameter.mutable_grad();
    if (fresh.defined()) kept.gradient.add_(fresh);
    fresh = kept.gradient;
  }
}

TiedParameters::Aside TiedParameters::set_aside() {
  Aside aside;
  for (const Shared& shared : shared_) {
    for (const at::Tensor& tensor : shared.tensors) {
      at::Tensor& gradient = tensor.mutable_grad();
      if (!gradient.defined()) continue;
      aside.kept_.push_back({tensor, gradient});
      gradient = at::Tensor();
    }
  }
  return aside;
}

std::vector<at::Tensor> TiedParameters::tensors() const {
  std::vector<at::Tensor> all;
  for (const Shared& shared : shared_) all.insert(all.end(), shared.tensors.begin(), shared.tensors.end());
  return all;
}

bool TiedParameters::any_in(const std::vector<bool>& stages) const {
  return std::any_of(places_.begin(), places_.end(), [&](std::size_t place) { return stages[place]; });
}

void TiedParameters::sum(const Gradients& gradients) {
  const at::NoGradGuard no_graph;
  for (Shared& shared : shared_) {
    if (!shared.tensors.front().requires_grad()) continue;
    at::Tensor total;
    for (const at::Tensor& tensor : shared.tensors) {
      const at::Tensor& gradient = gradients.of(tensor);
      if (!gradient.defined()) continue;
      total = total.defined() ? total + gradient : gradient;
    }
    if (!total.defined()) total = gradients.zeros_of(shared.tensors.front());
    if (shared.group) {
      const auto during = shared.group->during(shared.sum_text);
      shared.group->all_reduce(total);
    }
    for (std::size_t i = 0; i < shared.tensors.size(); ++i) {
      gradients.of(shared.tensors[i]) = i == 0 ? total : total.clone();
    }
  }
}

}  // namespace stagecraft
