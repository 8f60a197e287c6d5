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

double Evaluation::run(World& world, Pipeline& pipeline) {
  const std::int64_t together_rows = options_.batch * world.replicas();
  std::int64_t count = rows_.count / together_rows;
  if (options_.eval_batches > 0) count = std::min(count, options_.eval_batches);
  std::vector<std::optional<double>> losses;
  std::vector<double> weights;
  for (std::int64_t batch = 0; batch < count; ++batch) {
    Rows rows(static_cast<std::size_t>(options_.batch));
    std::iota(rows.begin(), rows.end(), rows_.first + batch * together_rows + world.replica() * options_.batch);
    StepOptions inputs;
    if (pipeline.has_first_stage()) inputs.keywords = batches_.inputs(rows);
    weights.push_back(0);
    if (pipeline.has_last_stage()) {
      const at::Tensor targets = batches_.targets(rows);
      facts_->classes = Classes::of(targets);
      weights.back() = weight_of(options_, targets);
      inputs.target = targets.to(batches_.device());
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
