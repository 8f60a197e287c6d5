#include "optimizer_state.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>

namespace stagecraft {
namespace {

namespace optim = torch::optim;

const optim::OptimizerOptions& options_of(const optim::Optimizer& optimizer, const at::Tensor& parameter) {
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& member : group.params()) {
      if (member.is_same(parameter)) return group.options();
    }
  }
  return optimizer.defaults();
}

/// Accessors of one slot of a `State`: of a tensor or of a count.
template <typename State>
struct Access {
  const char* name;
  const at::Tensor& (State::*tensor)() const noexcept = nullptr;  // these two, or the next two
  State& (State::*set_tensor)(const at::Tensor&) = nullptr;
  const std::int64_t& (State::*count)() const noexcept = nullptr;
  State& (State::*set_count)(const std::int64_t&) = nullptr;
};

template <typename State>
Access<State> tensor_slot(const char* name, const at::Tensor& (State::*get)() const noexcept,
                          State& (State::*set)(const at::Tensor&)) {
  return {.name = name, .tensor = get, .set_tensor = set};
}
template <typename State>
Access<State> count_slot(const char* name, const std::int64_t& (State::*get)() const noexcept,
                         State& (State::*set)(const std::int64_t&)) {
  return {.name = name, .count = get, .set_count = set};
}

template <typename State, typename Options>
class KindOf : public OptimizerKind {
 public:
  /// Whether a slot is needed, given its index, the options, and whether there is any state.
  using Needs = std::function<bool(std::size_t slot, const Options& options, bool has_state)>;

  KindOf(std::string name, std::vector<Access<State>> slots, Needs needs)
      : name_(std::move(name)), slots_(std::move(slots)), needs_(std::move(needs)) {}

  [[nodiscard]] std::string name() const override { return name_; }

  [[nodiscard]] std::vector<Slot> slots() const override {
    std::vector<Slot> slots;
    for (const Access<State>& slot : slots_) slots.push_back({slot.name, slot.count != nullptr});
    return slots;
  }

  [[nodiscard]] std::vector<at::Tensor> state_of(const optim::Optimizer& optimizer,
                                                 const at::Tensor& parameter) const override {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) return {};
    const auto& state = static_cast<const State&>(*found->second);
    std::vector<at::Tensor> tensors;
    for (const Access<State>& slot : slots_) {
      tensors.push_back(slot.count != nullptr ? at::scalar_tensor((state.*slot.count)(), at::kLong)
                                              : (state.*slot.tensor)());
    }
    return tensors;
  }

  void set_state(optim::Optimizer& optimizer, const at::Tensor& parameter,
                 std::vector<at::Tensor> tensors) const override {
    void* const key = parameter.unsafeGetTensorImpl();
    if (tensors.empty()) {
      optimizer.state().erase(key);
      return;
    }
    auto state = std::make_unique<State>();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!tensors[i].defined()) continue;
      if (slots_[i].count != nullptr) {
        ((*state).*slots_[i].set_count)(tensors[i].item<std::int64_t>());
      } else {
        ((*state).*slots_[i].set_tensor)(tensors[i]);
      }
    }
    optimizer.state()[key] = std::move(state);
  }

  [[nodiscard]] bool needs(const optim::Optimizer& optimizer, const at::Tensor& parameter, std::size_t slot,
                           bool has_state) const override {
    return needs_(slot, static_cast<const Options&>(options_of(optimizer, parameter)), has_state);
  }

 private:
  std::string name_;
  std::vector<Access<State>> slots_;
  Needs needs_;
};

template <typename State, typename Options>
std::unique_ptr<OptimizerKind> make(const char* name, std::vector<Access<State>> slots,
                                    typename KindOf<State, Options>::Needs needs) {
  return std::make_unique<KindOf<State, Options>>(name, std::move(slots), std::move(needs));
}

/// Adam and AdamW.
template <typename State, typename Options>
std::unique_ptr<OptimizerKind> adam(const char* name) {
  return make<State, Options>(name,
                              {count_slot<State>("step", &State::step, &State::step),
                               tensor_slot<State>("exp_avg", &State::exp_avg, &State::exp_avg),
                               tensor_slot<State>("exp_avg_sq", &State::exp_avg_sq, &State::exp_avg_sq),
                               tensor_slot<State>("max_exp_avg_sq", &State::max_exp_avg_sq, &State::max_exp_avg_sq)},
                              [](std::size_t slot, const Options& options, bool has_state) {
                                return has_state && (slot < 3 || options.amsgrad());
                              });
}

std::unique_ptr<OptimizerKind> sgd() {
  using State = optim::SGDParamState;
  return make<State, optim::SGDOptions>(
      "SGD", {tensor_slot<State>("momentum_buffer", &State::momentum_buffer, &State::momentum_buffer)},
      [](std::size_t, const optim::SGDOptions&, bool has_state) { return has_state; });
}

std::unique_ptr<OptimizerKind> rmsprop() {
  using State = optim::RMSpropParamState;
  return make<State, optim::RMSpropOptions>(
      "RMSprop",
      {count_slot<State>("step", &State::step, &State::step),
       tensor_slot<State>("square_avg", &State::square_avg, &State::square_avg),
       tensor_slot<State>("momentum_buffer", &State::momentum_buffer, &State::momentum_buffer),
       tensor_slot<State>("grad_avg", &State::grad_avg, &State::grad_avg)},
      [](std::size_t slot, const optim::RMSpropOptions& options, bool has_state) {
        return has_state && (slot < 2 || (slot == 2 && options.momentum() > 0) || (slot == 3 && options.centered()));
      });
}

std::unique_ptr<OptimizerKind> adagrad() {
  using State = optim::AdagradParamState;
  return make<State, optim::AdagradOptions>(
      "Adagrad",
      {count_slot<State>("step", &State::step, &State::step), tensor_slot<State>("sum", &State::sum, &State::sum)},
      [](std::size_t, const optim::AdagradOptions&, bool) { return true; });  // it has a state from the beginning
}

}  // namespace

std::unique_ptr<OptimizerKind> kind_of(const optim::Optimizer& optimizer) {
  const auto is = [&]<typename Kind>(const Kind*) { return dynamic_cast<const Kind*>(&optimizer) != nullptr; };
  if (is(static_cast<optim::SGD*>(nullptr))) return sgd();
  if (is(static_cast<optim::Adam*>(nullptr))) return adam<optim::AdamParamState, optim::AdamOptions>("Adam");
  if (is(static_cast<optim::AdamW*>(nullptr))) return adam<optim::AdamWParamState, optim::AdamWOptions>("AdamW");
  if (is(static_cast<optim::RMSprop*>(nullptr))) return rmsprop();
  if (is(static_cast<optim::Adagrad*>(nullptr))) return adagrad();
  return nullptr;
}

std::string known_optimizers() { return "SGD, Adam, AdamW, RMSprop or Adagrad"; }

std::string state_name(const Slot& slot, const std::string& parameter) {
  return kStatePrefix + slot.name + "/" + parameter;
}

}  // namespace stagecraft
