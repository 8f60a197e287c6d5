#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stagecraft/stage/stage.h"

namespace torch::optim {
class Optimizer;
}

/// What an optimizer remembers of a parameter, as named tensors.
namespace stagecraft {

/// One thing that a kind of optimizer remembers: "exp_avg", or a count of steps.
struct Slot {
  std::string name;
  bool is_count = false;  ///< A number, in the file an I64 []; else like the parameter.
};

class OptimizerKind {
 public:
  virtual ~OptimizerKind() = default;

  /// "Adam".
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::vector<Slot> slots() const = 0;

  /// By slot, undefined where there is nothing; empty when nothing at all is remembered of the parameter.
  [[nodiscard]] virtual std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer,
                                                         const at::Tensor& parameter) const = 0;
  /// Replaces it by these, or forgets it when there are none.
  virtual void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                         std::vector<at::Tensor> state) const = 0;
  /// Whether a step needs the slot, with the hyper-parameters that the optimizer has for the parameter. `has_state`:
  /// whether anything is remembered.
  [[nodiscard]] virtual bool needs(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                                   std::size_t slot, bool has_state) const = 0;
};

/// Null for an optimizer that is none of the known.
std::unique_ptr<OptimizerKind> kind_of(const torch::optim::Optimizer& optimizer);
/// "SGD, Adam, AdamW, RMSprop or Adagrad".
std::string known_optimizers();

/// "optimizer/exp_avg/0.weight".
std::string state_name(const Slot& slot, const std::string& parameter);
inline constexpr const char* kStatePrefix = "optimizer/";

}  // namespace stagecraft
