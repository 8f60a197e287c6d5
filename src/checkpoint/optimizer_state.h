#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stagecraft/stage/stage.h"

namespace torch::optim {
class Optimizer;
}

/// The state that an optimizer keeps for a parameter, as named tensors.
namespace stagecraft {

/// One part of the state of a kind of optimizer: "exp_avg", or a count of steps.
struct Slot {
  std::string name;
  bool is_count = false;  ///< An integer, stored as I64 []; otherwise a tensor like the parameter.
};

class OptimizerKind {
 public:
  virtual ~OptimizerKind() = default;

  /// "Adam".
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::vector<Slot> slots() const = 0;

  /// The state of a parameter by slot, undefined where a slot is not set; empty when there is no state.
  [[nodiscard]] virtual std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer,
                                                         const at::Tensor& parameter) const = 0;
  /// Replaces the state of a parameter; removes it when `state` is empty.
  virtual void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                         std::vector<at::Tensor> state) const = 0;
  /// Whether a step needs the slot, given the optimizer's hyper-parameters for the parameter. `has_state`: whether any
  /// slot of it is set.
  [[nodiscard]] virtual bool needs(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                                   std::size_t slot, bool has_state) const = 0;
};

/// Null for an unknown kind of optimizer.
std::unique_ptr<OptimizerKind> kind_of(const torch::optim::Optimizer& optimizer);
/// "SGD, Adam, AdamW, RMSprop or Adagrad".
std::string known_optimizers();

/// "optimizer/exp_avg/0.weight".
std::string state_name(const Slot& slot, const std::string& parameter);
inline constexpr const char* kStatePrefix = "optimizer/";

}  // namespace stagecraft
