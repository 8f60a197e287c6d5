#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Steps captured as CUDA graphs.
namespace stagecraft {

/// Whether training steps are captured and replayed: `true`, `false` or "auto". See docs/guide/gpus.md.
class GraphChoice {
 public:
  GraphChoice(bool on = false) : kind_(on ? Kind::kOn : Kind::kOff) {}  // NOLINT(google-explicit-constructor)
  /// "auto": where it is possible, without a word where it is not. Throws InvalidArgument for any other text.
  GraphChoice(const char* text);  // NOLINT(google-explicit-constructor)

  /// Whether steps are captured where possible.
  [[nodiscard]] bool is_on() const { return kind_ != Kind::kOff; }
  [[nodiscard]] bool is_auto() const { return kind_ == Kind::kAuto; }

 private:
  enum class Kind { kOff, kOn, kAuto };
  Kind kind_;
};

/// What has become of this rank's training steps with PipelineOptions::graph.
struct CapturedSteps {
  int graphs = 0;              ///< Captured and held.
  std::uint64_t replayed = 0;  ///< Steps, those that were captured first included.
  std::uint64_t eager = 0;     ///< Steps.
  bool last_was_replayed = false;
  /// Why the last step was not replayed; empty if it was, or without the option.
  std::string reason;
  /// Memory that the graphs keep from everybody else: gradients, losses, and what lives within a step.
  std::int64_t bytes = 0;
  /// How many microbatches the last captured step computes side by side at most.
  int lanes = 1;
};

}  // namespace stagecraft
