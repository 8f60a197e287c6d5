#include "stagecraft/watch/live_run.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "loss_curve.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/view/timeline.h"

namespace stagecraft {
namespace {

constexpr double kBetweenExchanges = 0.5;  // seconds
constexpr int kMostBetweenExchanges = 100'000;

/// Bytes that this process, or its tensors on the device, hold now; 0 if it is not known.
std::int64_t bytes_now(at::Device device) {
  if (device.is_cpu()) {
    std::ifstream statm("/proc/self/statm");
    std::int64_t total = 0;
    std::int64_t resident = 0;
    statm >> total >> resident;
    return resident * 4096;
  }
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator == nullptr ? 0 : allocator->getDeviceStats(device.index()).allocated_bytes.front().current;
}

/// JSON on one line, since it is the data of an event.
std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string in_json_quotes(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

class LiveRun::Implementation {
 public:
  Implementation(World& world, Pipeline& pipeline, const LiveRunOptions& options)
      : world_(world), pipeline_(pipeline), options_(options), records_(world.device().is_cpu()) {
    together(world, [&] {
      if (world.world_rank().value == 0) page_ = std::make_unique<LivePage>(options.page);
    });
    record(true);
    last_exchange_ = seconds_now();
  }

  const LivePage* page() const { return page_.get(); }

  void end_step(std::int64_t step, double loss, const LiveSpeed& speed) {
    if (page_) show_step(step, loss, speed);
    if (++since_exchange_ >= between_exchanges_) exchange();
    record(since_exchange_ + 1 >= between_exchanges_);
  }

 private:
  void record(bool now) {
    if (records_ && !options_.records_always) pipeline_.record_timeline(now);
  }

  void show_step(std::int64_t step, double loss, const LiveSpeed& speed) {
    curve_.add(step, loss);
    const double now = seconds_now();
    if (now - last_shown_ < 0.05) return;
    last_shown_ = now;
    std::ostringstream text;
    text << "{\"title\":" << in_json_quotes(options_.title) << ",\"step\":" << step << ",\"steps\":" << options_.steps
         << ",\"loss\":" << json_number(loss) << ",\"rows_per_second\":" << json_number(speed.rows)
         << ",\"tokens_per_second\":" << json_number(speed.tokens) << "}";
    page_->publish("step", text.str());
  }

  /// All ranks get the same numbers, so that all choose the same step for the next exchange.
  void exchange() {
    const double seconds = seconds_now() - last_exchange_;
    std::ostringstream own;
    own << bytes_now(world_.device()) << ' ' << static_cast<std::int64_t>(1e9 * seconds) << ' ' << ::getpid();
    std::vector<std::string> all;
    together(world_, [&] {
      const auto during = world_.everyone().during("the numbers of the page");
      all = world_.everyone().all_gather(own.str());
    });
    std::vector<std::int64_t> bytes;
    std::set<std::int64_t> processes;
    double slowest = 1e-9;
    for (const std::string& text : all) {
      std::istringstream fields(text);
      std::int64_t nanoseconds = 0;
      std::int64_t process = 0;
      fields >> bytes.emplace_back() >> nanoseconds >> process;
      processes.insert(process);
      slowest = std::max(slowest, 1e-9 * static_cast<double>(nanoseconds));
    }
    const std::vector<Timeline> timelines = records_ ? pipeline_.collect_timelines(RankId(0)) : std::vector<Timeline>();
    between_exchanges_ =
        static_cast<int>(std::clamp(since_exchange_ * kBetweenExchanges / slowest, 1.0, double(kMostBetweenExchanges)));
    since_exchange_ = 0;
    last_exchange_ = seconds_now();
    // Ranks as threads have one memory between them.
    if (page_) show_ranks(bytes, world_.device().is_cpu() && processes.size() == 1, timelines);
  }

  void show_ranks(const std::vector<std::int64_t>& bytes, bool one_memory, const std::vector<Timeline>& timelines) {
    const bool has_times =
        std::any_of(timelines.begin(), timelines.end(), [](const Timeline& t) { return !t.empty(); });
    const TimelineSummary summary = has_times ? summarize(timelines) : TimelineSummary();
    const int ranks = world_.size();
    std::ostringstream text;
    text << "{\"seconds\":" << summary.seconds << ",\"ranks\":[";
    for (int r = 0; r < ranks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const double idle = has_times && summary.seconds > 0 ? 1 - summary.busy[i] / summary.seconds : std::nan("");
      // Ranks of replica 0: rank p of replica r has the number p * replicas + r.
      text << (r > 0 ? "," : "") << "{\"idle\":" << json_number(std::max(0.0, idle))
           << ",\"bytes\":" << bytes[i * static_cast<std::size_t>(world_.replicas())] << "}";
    }
    text << "],\"shared_memory\":" << (one_memory ? "true" : "false") << "}";
    page_->publish("ranks", text.str());
    page_->publish("losses", curve_.json());
    if (!has_times || !page_->is_watched()) return;
    std::ostringstream trace;
    write_timeline_trace(trace, timelines, pipeline_.schedule().name);
    page_->publish("timeline", on_one_line(trace.str()));
  }

  World& world_;
  Pipeline& pipeline_;
  LiveRunOptions options_;
  bool records_;
  std::unique_ptr<LivePage> page_;
  LossCurve curve_;
  double last_shown_ = 0;
  double last_exchange_ = 0;
  int since_exchange_ = 0;
  int between_exchanges_ = 1;
};

LiveRun::LiveRun(World& world, Pipeline& pipeline, const LiveRunOptions& options)
    : implementation_(std::make_unique<Implementation>(world, pipeline, options)) {}
LiveRun::~LiveRun() = default;
const LivePage* LiveRun::page() const { return implementation_->page(); }
void LiveRun::end_step(std::int64_t step, double loss, const LiveSpeed& speed) {
  implementation_->end_step(step, loss, speed);
}

}  // namespace stagecraft
