// Recorded timelines, and the costs found from them.

#include <sstream>

#include "functions.h"
#include "profile_report.h"
#include "stagecraft/view/timeline.h"

namespace stagecraft::python {
namespace {

const StepTimelines& step_of(const Arguments& args, Py_ssize_t i, const Recording& recording) {
  const int step = args.integer(i, "step");
  if (step >= 0 && static_cast<std::size_t>(step) < recording.steps.size()) {
    return recording.steps[static_cast<std::size_t>(step)];
  }
  throw InvalidArgument("step: got " + std::to_string(step) + ", but there are " +
                        std::to_string(recording.steps.size()) + ", counted from 0");
}

Object span_tuple(const Span& span) {
  return tuple_of(to_python(std::string_view(to_text(span.action))), to_python(span.start), to_python(span.end),
                  to_python(span.waited), Object(PyLong_FromLongLong(span.bytes)), to_python(span.beside),
                  to_python(span.replayed));
}

}  // namespace

Object recording_parse(const Arguments& args) {
  const std::string text = args.contents(0, "text");
  const std::string name = args.text(1, "name");
  return wrapped(without_gil([&] {
    Recording recording = parse_timeline_trace(text);
    if (recording.name.empty()) recording.name = name;
    return recording;
  }));
}

Object recording_facts(const Arguments& args) {
  const auto& recording = args.value<Recording>(0, "recording");
  const std::size_t ranks = recording.steps.empty() ? 0 : recording.steps.front().size();
  return to_python(cli::Json{{"name", recording.name}, {"steps", recording.steps.size()}, {"ranks", ranks}});
}

/// Per rank a list of (action, start, end, waited, bytes, beside).
Object recording_spans(const Arguments& args) {
  const auto& recording = args.value<Recording>(0, "recording");
  return list_of(step_of(args, 1, recording), [](const Timeline& timeline) { return list_of(timeline, span_tuple); });
}

/// (seconds, busy per rank, idle fraction).
Object recording_summary(const Arguments& args) {
  const auto& recording = args.value<Recording>(0, "recording");
  const TimelineSummary summary = summarize(step_of(args, 1, recording));
  return tuple_of(to_python(summary.seconds), to_python(cli::Json(summary.busy)), to_python(summary.idle()));
}

Object recording_picture(const Arguments& args) {
  const auto& recording = args.value<Recording>(0, "recording");
  std::ostringstream out;
  if (args.text(1, "format") == "svg") {
    const StepTimelines& step = step_of(args, 2, recording);
    without_gil([&] { write_timeline_svg(out, step, recording.name); });
  } else {
    without_gil([&] { write_timeline_trace(out, recording); });
  }
  return to_python(std::string_view(out.str()));
}

Object profiled(const Arguments& args) {
  std::vector<Recording> recordings;
  for (PyObject* item : args.items(args.at(0), "recordings")) {
    recordings.push_back(args.value_of<Recording>(item, "recordings[" + std::to_string(recordings.size()) + "]"));
  }
  ProfileOptions options;
  if (!args.is_none(1)) {
    options.skip = args.integer(1, "skip");
    if (options.skip < 0) throw InvalidArgument("skip: got " + std::to_string(options.skip) + ", must be 0 or more");
  }
  return wrapped(without_gil([&] { return profile(recordings, options); }));
}

/// (facts, costs, schedules of the runs, text).
Object profile_facts(const Arguments& args) {
  const auto& found = args.value<Profile>(0, "profile");
  cli::Json json = {{"jitter", found.jitter},
                    {"paces", found.paces},
                    {"placement", cli::Json::array()},
                    {"assumed_splits", cli::Json::array()},
                    {"runs", cli::Json::array()}};
  for (const RankId rank : found.placement.ranks_of_stages()) json["placement"].push_back(rank.value);
  for (const StageId stage : found.assumed_splits) json["assumed_splits"].push_back(stage.value);
  for (const ProfiledRun& run : found.runs) {
    json["runs"].push_back({{"name", run.name},
                            {"steps", run.steps},
                            {"measured_period", run.measured_period},
                            {"measured_makespan", run.measured_makespan}});
  }
  std::ostringstream text;
  without_gil([&] { cli::write_profile_report(text, found); });
  return tuple_of(to_python(json), wrapped(CostFile{found.costs, {}}),
                  list_of(found.runs, [](const ProfiledRun& run) { return wrapped(Schedule(run.schedule)); }),
                  to_python(std::string_view(text.str())));
}

Object period_predicted(const Arguments& args) {
  const auto& found = args.value<Profile>(0, "profile");
  const auto& schedule = args.value<Schedule>(1, "schedule");
  return to_python(without_gil([&] { return predicted_period(found, schedule); }));
}

}  // namespace stagecraft::python
