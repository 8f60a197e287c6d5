#pragma once

#include <memory>
#include <vector>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft {

/// Throws InvalidArgument for a tie of stages that do not exist, of fewer than two, or of a parameter that a stage here
/// does not have.
void check_ties(const std::vector<Stage>& stages, const std::vector<Tie>& ties, const Placement& placement);

/// Sums the gradients of tied parameters over the stages that have them.
class TiedParameters {
 public:
  /// All ranks make it, with the same ties.
  TiedParameters(World& world, const std::vector<Stage>& stages, const std::vector<Tie>& ties,
                 const Placement& placement);

  /// All become what the first stage of the tie has.
  void make_equal();

  /// Moves what earlier steps have left in the gradients aside, and adds it back on destruction.
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
  /// The gradients of this step, the same bits on all ranks.
  void sum();

  /// Those of this rank.
  [[nodiscard]] std::vector<at::Tensor> tensors() const;
  /// Whether one of these stages of the rank, by place, has a tied parameter.
  [[nodiscard]] bool any_in(const std::vector<bool>& stages) const;

 private:
  struct Shared {
    std::string parameter;
    std::string sum_text;             // for errors
    std::unique_ptr<Group> group;     // null: all on one rank
    std::vector<at::Tensor> tensors;  // of this rank, each once
  };
  std::vector<Shared> shared_;       // those that this rank has a part of
  std::vector<std::size_t> places_;  // of the stages that have them
};

}  // namespace stagecraft
