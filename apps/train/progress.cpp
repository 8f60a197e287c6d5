#include "progress.h"

#include <unistd.h>

#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "stagecraft/core/measurement.h"

namespace stagecraft::train {
namespace {

std::optional<std::int64_t> step_of_csv(std::string_view line) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  if (error != std::errc() || end == line.data() + line.size() || *end != ',') return std::nullopt;
  return step;
}

/// "0:07", "1:02:03".
std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  char text[64];
  if (whole < 3600) {
    std::snprintf(text, sizeof text, "%" PRId64 ":%02" PRId64, whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%" PRId64 ":%02" PRId64 ":%02" PRId64, whole / 3600, whole / 60 % 60, whole % 60);
  }
  return text;
}

}  // namespace

Progress::Progress(const Options& options, bool speaks)
    : options_(options), speaks_(speaks), rewrites_(speaks && ::isatty(STDOUT_FILENO) == 1) {}

Progress::~Progress() { end_rewritten_line(); }

void Progress::end_rewritten_line() {
  if (!is_in_line_) return;
  is_in_line_ = false;
  std::printf("\n");
  std::fflush(stdout);
}

void Progress::begin(std::int64_t steps) {
  first_ = steps;
  start_ = seconds_now();
  if (!speaks_ || options_.losses.empty()) return;
  losses_ = std::make_unique<StepLog>(options_.losses, StepLog::Format{"--losses", "step,loss", step_of_csv}, steps);
}

void Progress::step(std::int64_t step, double loss, std::optional<double> eval_loss) {
  if (!speaks_) return;
  char line[160];
  if (losses_) {
    std::snprintf(line, sizeof line, "%" PRId64 ",%.17g", step, loss);
    losses_->write(line);
  }
  const double now = seconds_now();
  const bool is_marked = step % options_.report == 0 || step == options_.steps || step == first_ + 1 || eval_loss;
  constexpr double kBetween = 0.1;  // seconds between two lines on a terminal
  if (!(rewrites_ ? is_marked || now - last_shown_ >= kBetween : is_marked)) return;
  last_shown_ = now;
  const double seconds = (now - start_) / static_cast<double>(step - first_);
  std::snprintf(line, sizeof line, "step %" PRId64 "/%" PRId64 "  loss %.4f", step, options_.steps, loss);
  std::string text = line;
  if (eval_loss) {
    std::snprintf(line, sizeof line, "  eval loss %.4f", *eval_loss);
    text += line;
  }
  std::snprintf(line, sizeof line, "  %.1f ms", 1e3 * seconds);
  text += line;
  if (step < options_.steps) text += "  " + clock_text(seconds * static_cast<double>(options_.steps - step)) + " left";
  if (rewrites_) {
    std::printf("\r\033[K%s", text.c_str());
    is_in_line_ = true;
    if (eval_loss || step == options_.steps) end_rewritten_line();
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void Progress::say(const std::string& line) {
  if (!speaks_) return;
  end_rewritten_line();
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace stagecraft::train
