// Writes a recording as trace events, and reads it back. Waits are separate slices for the viewer; everything that is
// read back is in the slice of the action and its arguments.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>

#include "escape.h"
#include "parse_json.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/schedule.h"
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
    const std::string args =
        fmt::format(R"("step":{},"waited":{:.3f},"bytes":{}{}{})", step, kMicroseconds * span.waited, span.bytes,
                    span.beside ? R"(,"beside":true)" : "", span.replayed ? R"(,"replayed":true)" : "");
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

namespace {

using Json = nlohmann::json;
using json::shown;

constexpr std::int64_t kMostSteps = 1 << 20;

constexpr const char* kRemedy =
    "record one with Pipeline::record_timeline and write_timeline_trace, or with the demo's timeline.json";

class Reader {
 public:
  Recording read(const Json& root) {
    if (!root.is_object() || !root.contains("traceEvents")) {
      throw InvalidArgument(fmt::format("traceEvents: is missing: this is not a timeline; {}", kRemedy));
    }
    const Json& events = root["traceEvents"];
    if (!events.is_array()) {
      throw InvalidArgument(fmt::format("traceEvents: got {}, expected a list of events", shown(events)));
    }
    if (root.contains("otherData") && root["otherData"].is_object() && root["otherData"].contains("schedule") &&
        root["otherData"]["schedule"].is_string()) {
      recording_.name = root["otherData"]["schedule"].get<std::string>();
    }
    for (std::size_t i = 0; i < events.size(); ++i) read_event(events[i], i);
    finish();
    return std::move(recording_);
  }

 private:
  void complain(const std::string& key, const std::string& text) { problems_.add(key + ": " + text); }

  void finish() {
    if (!problems_.empty()) throw InvalidArgument(problems_.text("\n"));
    if (recording_.steps.empty()) {
      throw InvalidArgument(fmt::format("traceEvents: {}; {}",
                                        looks_drawn_ ? "this is the picture of a schedule, not the record of a run"
                                                     : "none of them is an action that a run has recorded",
                                        kRemedy));
    }
    std::size_t ranks = 0;
    for (const StepTimelines& step : recording_.steps) ranks = std::max(ranks, step.size());
    for (std::size_t s = 0; s < recording_.steps.size(); ++s) {
      StepTimelines& step = recording_.steps[s];
      step.resize(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        if (step[r].empty()) {
          throw InvalidArgument(
              fmt::format("traceEvents: rank {} has no action in step {}, but {} ranks and {} steps are recorded: "
                          "record every step on every rank",
                          r, s, ranks, recording_.steps.size()));
        }
      }
    }
  }

  /// A number of an object, finite and not negative; none after a complaint.
  std::optional<double> number(const Json& object, const std::string& key, const std::string& name) {
    if (!object.contains(key)) {
      complain(name, "is missing: give a number");
      return std::nullopt;
    }
    return json::non_negative(object[key], name, problems_);
  }

  std::optional<std::int64_t> whole(const Json& object, const std::string& key, const std::string& name,
                                    std::int64_t end) {
    const auto value = number(object, key, name);
    if (!value) return std::nullopt;
    if (*value < static_cast<double>(end) && *value == std::floor(*value)) return static_cast<std::int64_t>(*value);
    complain(name, fmt::format("got {}, expected a whole number from 0 to {}", shown(object[key]), end - 1));
    return std::nullopt;
  }

  void read_event(const Json& event, std::size_t index) {
    const std::string name = fmt::format("traceEvents[{}]", index);
    if (!event.is_object()) return complain(name, fmt::format("got {}, expected an object", shown(event)));
    if (!event.contains("ph") || event["ph"] != "X" || !event.contains("args") || !event["args"].is_object()) return;
    const Json& args = event["args"];
    if (args.contains("kind")) looks_drawn_ = true;
    if (!args.contains("step") || !args.contains("waited")) return;
    const auto action = action_of(event, name);
    const auto step = whole(args, "step", name + ".args.step", kMostSteps);
    const auto rank = whole(event, "pid", name + ".pid", kMaxRanks);
    const auto working = number(event, "ts", name + ".ts");
    const auto duration = number(event, "dur", name + ".dur");
    const auto waited = number(args, "waited", name + ".args.waited");
    const auto bytes = args.contains("bytes") ? number(args, "bytes", name + ".args.bytes") : 0;
    if (!action || !step || !rank || !working || !duration || !waited || !bytes) return;
    const bool beside = args.contains("beside") && args["beside"] == true;
    Span span;
    span.action = *action;
    span.start = (*working - (beside ? 0 : *waited)) / kMicroseconds;
    span.end = (*working + *duration) / kMicroseconds;
    span.waited = *waited / kMicroseconds;
    span.bytes = static_cast<std::int64_t>(*bytes);
    span.beside = beside;
    span.replayed = args.contains("replayed") && args["replayed"] == true;
    add(static_cast<std::size_t>(*step), static_cast<std::size_t>(*rank), span, index);
  }

  std::optional<Action> action_of(const Json& event, const std::string& name) {
    if (!event.contains("name") || !event["name"].is_string()) {
      complain(name + ".name", "is missing: give the action, such as \"0F0\"");
      return std::nullopt;
    }
    const auto parsed = parse_action(event["name"].get<std::string>());
    if (const auto* action = std::get_if<Action>(&parsed); action != nullptr && !action->is_idle()) return *action;
    const auto* error = std::get_if<ActionTextError>(&parsed);
    complain(name + ".name", fmt::format("got {}: {}", shown(event["name"]),
                                         error != nullptr ? error->rule : "an action is expected, such as 0F0"));
    return std::nullopt;
  }

  /// Steps and ranks may come in any order, but their numbers must not exceed the event's index: a wrong number must
  /// not use up all memory.
  void add(std::size_t step, std::size_t rank, const Span& span, std::size_t index) {
    if (step > index || rank > index) {
      return complain(fmt::format("traceEvents[{}]", index),
                      fmt::format("step {} and rank {} are more than the events before it", step, rank));
    }
    if (recording_.steps.size() <= step) recording_.steps.resize(step + 1);
    StepTimelines& ranks = recording_.steps[step];
    if (ranks.size() <= rank) ranks.resize(rank + 1);
    ranks[rank].push_back(span);
  }

  Recording recording_;
  Faults problems_;
  bool looks_drawn_ = false;
};

}  // namespace

Recording parse_timeline_trace(std::string_view text) { return Reader().read(json::parse<Json>(text, kRemedy)); }

}  // namespace stagecraft
