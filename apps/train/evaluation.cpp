#include "evaluation.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <sstream>

#include "stagecraft/runtime/together.h"

namespace stagecraft::train {

std::vector<double> weights_of_all(Group& group, const std::vector<double>& own) {
  std::ostringstream text;
  for (const double weight : own) text << std::hexfloat << weight << ' ';
  std::vector<double> sums(own.size());
  const auto during = group.during("how much batches count");
  for (const std::string& weights : group.all_gather(text.str())) {
    const char* rest = weights.c_str();
    for (double& sum : sums) {
      char* end = nullptr;  // an istream does not read what hexfloat writes
      sum += std::strtod(rest, &end);
      rest = end;
    }
  }
  return sums;
}

std::int64_t Evaluation::batches(const World& world) const {
  const std::int64_t count = rows_.count / (options_.batch * world.replicas());
  return options_.eval_batches > 0 ? std::min(count, options_.eval_batches) : count;
}

Rows Evaluation::rows_of(const World& world, std::int64_t batch) const {
  Rows rows(static_cast<std::size_t>(options_.batch));
  std::iota(rows.begin(), rows.end(), rows_.first + (batch * world.replicas() + world.replica()) * options_.batch);
  return rows;
}

/// See Objective::scales, over all batches. On ranks with targets.
at::Tensor Evaluation::scales(World& world, const Pipeline& pipeline) const {
  std::vector<double> counts;
  if (!pipeline.has_last_stage()) return {};
  for (std::int64_t batch = 0; batch < batches(world); ++batch) {
    const std::vector<double> own = objective_.counts_of(objective_.targets(batches_.data(), rows_of(world, batch)));
    counts.resize(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) counts[i] += own[i];
  }
  return Objective::scales(weights_of_all(world.peers(), counts)).to(batches_.device());
}

double Evaluation::run(World& world, Pipeline& pipeline) {
  std::vector<std::optional<double>> losses;
  std::vector<double> weights;
  at::Tensor scales;
  if (objective_.needs_scales()) together(world, [&] { scales = this->scales(world, pipeline); });
  for (std::int64_t batch = 0; batch < batches(world); ++batch) {
    const Rows rows = rows_of(world, batch);
    StepOptions inputs;
    if (pipeline.has_first_stage()) inputs.keywords = batches_.inputs(rows);
    weights.push_back(0);
    if (pipeline.has_last_stage()) {
      const Value targets = objective_.targets(batches_.data(), rows);
      weights.back() = objective_.weight_of(targets);
      inputs.target = targets.map_tensors([&](const at::Tensor& tensor) { return tensor.to(batches_.device()); });
      if (scales.defined()) inputs.loss_keywords.emplace_back(std::string(kScales), scales);
    }
    losses.push_back(counted_loss(pipeline.eval({}, inputs)));
  }
  together(world, [&] { weights = weights_of_all(world.everyone(), weights); });
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double mean = total > 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (losses[i]) mean += *losses[i] * weights[i] / total;
  }
  return mean;
}

}  // namespace stagecraft::train
