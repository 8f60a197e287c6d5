#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/stage/stage.h"
#include "step_inputs.h"

namespace stagecraft {

/// What a graph of a step depends on, apart from the data in its tensors: two steps of the same signature can share
/// one.
class StepSignature {
 public:
  explicit StepSignature(c10::Device device) : device_(device) {}

  void add(std::uint64_t number) { key_.push_back(number); }
  void add(const Value& value);
  void add(const ValueDict& dict);
  void add(const StepInputs& inputs);
  /// What decides which kernels LibTorch takes, and code around the step that sees its operations.
  void add_modes();
  /// Everything about a stage that may change between two steps, except gradients. After the inputs.
  void add(const Stage& stage);

  [[nodiscard]] const std::vector<std::uint64_t>& key() const { return key_; }
  /// The tensors of the inputs, each once.
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// Whether two of them have bytes in common, one of which is this.
  [[nodiscard]] bool overlaps(std::size_t tensor) const;
  /// Why a step of this signature cannot be captured; empty if nothing is known.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }

  /// The same inputs, with each of `tensors` replaced.
  [[nodiscard]] StepInputs with(const StepInputs& inputs, const std::vector<at::Tensor>& replacements) const;
  [[nodiscard]] Value with(const Value& value, const std::vector<at::Tensor>& replacements) const;
  [[nodiscard]] ValueDict with(const ValueDict& dict, const std::vector<at::Tensor>& replacements) const;

 private:
  void add(const at::Tensor& tensor);
  [[nodiscard]] std::size_t index_of(const at::Tensor& tensor) const;
  void refuse(std::string why) {
    if (obstacle_.empty()) obstacle_ = std::move(why);
  }

  c10::Device device_;
  std::vector<std::uint64_t> key_;
  std::vector<at::Tensor> tensors_;
  std::string obstacle_;
};

}  // namespace stagecraft
