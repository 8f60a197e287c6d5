#include "metrics.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "stagecraft/runtime/together.h"
#include "stagecraft/view/timeline.h"

namespace stagecraft::train {
namespace {

/// The most that this process has had in memory so far, or that its tensors had on the device; 0 if it is not known.
std::int64_t peak_bytes(at::Device device) {
  if (device.is_cpu()) {
    struct rusage usage {};
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? std::int64_t{1024} * usage.ru_maxrss : 0;
  }
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) return 0;
  return allocator->getDeviceStats(device.index()).allocated_bytes.front().peak;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

/// Composes {"a":1,"b":2}.
class JsonLine {
 public:
  JsonLine& add(const char* key, const std::string& value) {
    text_ += (text_.empty() ? "{\"" : ",\"") + std::string(key) + "\":" + value;
    return *this;
  }
  JsonLine& add(const char* key, double value) { return add(key, number_text(value)); }
  JsonLine& add(const char* key, std::int64_t value) { return add(key, std::to_string(value)); }
  [[nodiscard]] std::string text() const { return text_ + "}"; }

 private:
  std::string text_;
};

std::optional<std::int64_t> step_of_json(std::string_view line) {
  constexpr std::string_view kBeginning = "{\"step\":";
  std::int64_t step = 0;
  if (!line.starts_with(kBeginning) || !line.ends_with('}')) return std::nullopt;
  const char* const begin = line.data() + kBeginning.size();
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), step);
  return error == std::errc() && *end == ',' ? std::optional(step) : std::nullopt;
}

}  // namespace

Metrics::Metrics(World& world, Pipeline& pipeline, const Options& options)
    : world_(world), pipeline_(pipeline), options_(options), is_on_(!options.metrics.empty()) {
  // On a GPU, a recorded step waits for the device: that would slow down what is measured.
  if (is_on_ && world.device().is_cpu()) pipeline.record_timeline(true);
}

void Metrics::begin(std::int64_t steps) {
  if (!is_on_ || world_.world_rank().value != 0) return;
  log_ = std::make_unique<StepLog>(options_.metrics, StepLog::Format{"--metrics", "", step_of_json}, steps);
}

void Metrics::add_batch(double seconds) {
  if (!is_on_) return;
  seconds_ += seconds;
  for (const double busy : summarize({pipeline_.timeline()}).busy) busy_ += busy;
}

void Metrics::end_step(const StepFacts& facts) {
  if (!is_on_) return;
  std::ostringstream own;
  own << std::hexfloat << busy_ << ' ' << seconds_ << ' ' << peak_bytes(world_.device());
  busy_ = 0;
  seconds_ = 0;
  std::vector<Message> all;
  together(world_, [&] {
    const auto during = world_.everyone().during("the metrics of a step");
    all = world_.everyone().collect({{}, own.str()}, 0);
  });
  if (!log_) return;
  double busy = 0;
  double seconds = 0;
  std::int64_t peak = 0;
  for (const Message& message : all) {
    char* rest = nullptr;  // istream does not read what hexfloat writes
    busy += std::strtod(message.header.c_str(), &rest);
    seconds += std::strtod(rest, &rest);
    peak = std::max<std::int64_t>(peak, std::strtoll(rest, nullptr, 10));
  }
  const bool has_idle = world_.device().is_cpu() && seconds > 0;
  JsonLine line;
  line.add("step", facts.step).add("loss", facts.loss).add("gradient_norm", facts.gradient_norm);
  line.add("learning_rate", facts.learning_rate).add("rows", facts.rows_taken);
  if (facts.tokens_per_second > 0) {
    line.add("tokens_per_second", facts.tokens_per_second);
  } else {
    line.add("rows_per_second", facts.rows_per_second);
  }
  line.add("peak_bytes", peak);
  line.add("idle", has_idle ? number_text(std::max(0.0, 1 - busy / seconds)) : "null");
  if (facts.eval_loss) line.add("eval_loss", *facts.eval_loss);
  log_->write(line.text());
}

}  // namespace stagecraft::train
