#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

/// Activation recompute: less memory for more compute.
namespace stagecraft {

/// What a stage drops after its forward and computes again before its backward. Only inputs are kept. Losses and
/// gradients stay the same: the second forward draws the same random numbers and changes no buffer.
class Recompute {
 public:
  /// Nothing: all activations are kept.
  Recompute() = default;
  /// The whole stage at once: keeps the stage's inputs alone.
  static Recompute stage() { return {Kind::kStage, 0, {}}; }
  /// Segments of `layers` layers: also keeps what crosses from one segment to the next, and the backward holds the
  /// activations of one segment at a time. For stages that have layers: those of a Sequential and of an exported
  /// program.
  static Recompute every(std::int64_t layers) { return {Kind::kLayers, layers, {}}; }
  /// The layers for which `chosen` returns true, each by itself; other layers keep their activations. Gets the name of
  /// a layer in the whole model, such as "3" or "blocks.3".
  static Recompute where(std::function<bool(const std::string& name)> chosen) {
    return {Kind::kNamed, 0, std::move(chosen)};
  }

  enum class Kind { kNothing, kStage, kLayers, kNamed };
  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_any() const { return kind_ != Kind::kNothing; }
  [[nodiscard]] std::int64_t layers() const { return layers_; }
  [[nodiscard]] bool chooses(const std::string& name) const { return chosen_(name); }

 private:
  Recompute(Kind kind, std::int64_t layers, std::function<bool(const std::string&)> chosen)
      : kind_(kind), layers_(layers), chosen_(std::move(chosen)) {}

  Kind kind_ = Kind::kNothing;
  std::int64_t layers_ = 0;
  std::function<bool(const std::string&)> chosen_;
};

}  // namespace stagecraft
