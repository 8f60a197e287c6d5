// Writes a recording as trace events. Waits are separate slices for the viewer; everything that is read back is in the
// slice of the action and its arguments.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <ostream>

#include "escape.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/view/timeline.h"

namespace stagecraft {
namespace {

enum RecordedThread { kComputed = 1, kCommunicated = 2, kBeside = 3 };

constexpr double kMicroseconds = 1e6;

double first_start(const Recording& recording) {
  double begin = std::numeric_limits<double>::max();
  for (const StepTimelines& step : recording.steps) {
    for (const Timeline& timeline : step) {
      for (const Span& span : timeline) begin = std::min(begin, span.start);
    }
  }
  return begin;
}

class Writer {
 public:
  Writer(std::ostream& out, const Recording& recording)
      : out_(out), recording_(recording), begin_(first_start(recording)) {}

  void write() {
    out_ << fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"schedule\":\"{}\"}},\n\"traceEvents\":[",
                        detail::json_escaped(recording_.name));
    std::size_t ranks = 0;
    for (const StepTimelines& step : recording_.steps) ranks = std::max(ranks, step.size());
    for (std::size_t r = 0; r < ranks; ++r) {
      event(fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"Rank {0}"}}}})", r));
    }
    for (std::size_t step = 0; step < recording_.steps.size(); ++step) {
      for (std::size_t r = 0; r < recording_.steps[step].size(); ++r) {
        for (const Span& span : recording_.steps[step][r]) write_span(step, r, span);
      }
    }
    out_ << "\n]}\n";
  }

 private:
  void event(const std::string& text) {
    out_ << (is_first_ ? "\n" : ",\n") << text;
    is_first_ = false;
  }

  void slice(std::size_t rank, RecordedThread thread, const std::string& name, double start, double end,
             const std::string& args) {
    event(fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})", name,
                      rank, static_cast<int>(thread), kMicroseconds * (start - begin_), kMicroseconds * (end - start),
                      args));
  }

  void write_span(std::size_t step, std::size_t rank, const Span& span) {
    const std::string name = to_text(span.action);
    const std::string args = fmt::format(R"("step":{},"waited":{:.3f},"bytes":{}{})", step, kMicroseconds * span.waited,
                                         span.bytes, span.beside ? R"(,"beside":true)" : "");
    if (span.beside) return slice(rank, kBeside, name, span.start, span.end, args);
    const double working = span.start + span.waited;
    if (span.waited > 0) slice(rank, kCommunicated, "wait for " + name, span.start, working, "");
    slice(rank, is_compute(span.action.kind()) ? kComputed : kCommunicated, name, working, span.end, args);
  }

  std::ostream& out_;
  const Recording& recording_;
  double begin_;
  bool is_first_ = true;
};

}  // namespace

void write_timeline_trace(std::ostream& out, const Recording& recording) { Writer(out, recording).write(); }

void write_timeline_trace(std::ostream& out, const std::vector<Timeline>& ranks, const std::string& name) {
  write_timeline_trace(out, Recording{name, {ranks}});
}

}  // namespace stagecraft
