#pragma once

#include <memory>
#include <vector>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft {

/// Throws InvalidArgument for a tie that names a stage that does not exist, fewer than two stages, or a parameter that
/// a stage of this rank does not have.
void check_ties(const std::vector<Stage>& stages, const std::vector<Tie>& ties, const Placement& placement);

/// Sums the gradients of tied parameters over the stages that have them.
class TiedParameters {
 public:
  /// All ranks make it, with the same ties.
  TiedParameters(World& world, const std::vector<Stage>& stages, const std::vector<Tie>& ties,
                 const Placement& placement);

  /// Gives all stages of a tie the value that its first stage has.
  void make_equal();

  /// Moves accumulated gradients aside, and adds them back on destruction.
  class Aside {
   public:
    Aside() = default;
    Aside(Aside&& other) noexcept : kept_(std::move(other.kept_)) { other.kept_.clear(); }
    Aside& operator=(Aside&&) = delete;
    ~Aside();

   private:
    friend class TiedParameters;
    struct Kept {
      at::Tensor parameter;
      at::Tensor gradient;
    };
    std::vector<Kept> kept_;
  };
  [[nodiscard]] Aside set_aside();
  /// Where the gradients of parameters are.
  struct Gradients {
    std::function<at::Tensor&(const at::Tensor& parameter)> of = [](const at::Tensor& parameter) -> at::Tensor& {
      return parameter.mutable_grad();
    };
    std::function<at::Tensor(const at::Tensor& parameter)> zeros_of = [](const at::Tensor& parameter) {
      return at::zeros_like(parameter);
    };
  };
  /// Sums the gradients of this step over the stages of each tie; the same on all ranks, bit for bit.
  void sum(const Gradients& gradients);

  /// Tied parameters of this rank.
  [[nodiscard]] std::vector<at::Tensor> tensors() const;
  /// Whether one of the marked stages has a tied parameter. `stages`: by index among the rank's own.
  [[nodiscard]] bool any_in(const std::vector<bool>& stages) const;

 private:
  struct Shared {
    std::string parameter;
    std::string sum_text;             // for errors
    std::unique_ptr<Group> group;     // null if all are on one rank
    std::vector<at::Tensor> tensors;  // of this rank, each once
  };
  std::vector<Shared> shared_;       // the ties that this rank has a part of
  std::vector<std::size_t> places_;  // indices of the stages that have tied parameters
};

}  // namespace stagecraft
