#include "stagecraft/autograd/backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "split_plan.h"
#include "stagecraft/core/error.h"

namespace stagecraft {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

Edge edge_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : Edge();
}

/// Runs everything reachable from `roots`, and accumulates into the leaves' .grad.
void accumulate(const edge_list& roots, const variable_list& gradients) {
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

/// Records the results of hooks on tensors inside the graph. The input part runs the hooks at the forks; the weight
/// part, which starts at the forks, must use the gradients that they returned without running them again.
class RecordedHooks {
 public:
  /// Wraps the hooks of the nodes behind `edges`, from index `begin` on.
  RecordedHooks(const edge_list& edges, std::size_t begin) {
    for (std::size_t i = begin; i < edges.size(); ++i) {
      torch::autograd::Node& node = *edges[i].function;
      if (node.tensor_pre_hooks().empty() || records_.contains(&node)) continue;
      auto record = std::make_shared<variable_list>();
      auto recorder = std::make_unique<Recorder>(std::move(node.tensor_pre_hooks()), record);
      node.tensor_pre_hooks().clear();
      node.tensor_pre_hooks().push_back(std::move(recorder));
      records_.emplace(&node, std::move(record));
    }
  }

  /// Removes the hooks from the node, and sets the gradient to what they returned.
  void apply(const Edge& fork, at::Tensor& gradient) {
    fork.function->retains_grad_hooks().clear();
    const auto found = records_.find(fork.function.get());
    if (found == records_.end()) return;
    fork.function->tensor_pre_hooks().clear();
    if (fork.input_nr < found->second->size()) gradient = (*found->second)[fork.input_nr];
  }

 private:
  struct Recorder : torch::autograd::FunctionPreHook {
    using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;
    Recorder(Hooks hooks, std::shared_ptr<variable_list> record)
        : hooks_(std::move(hooks)), record_(std::move(record)) {}
    variable_list operator()(const variable_list& gradients) override {
      *record_ = gradients;
      for (const auto& hook : hooks_) *record_ = (*hook)(*record_);
      return *record_;
    }
    Hooks hooks_;
    std::shared_ptr<variable_list> record_;
  };

  std::unordered_map<const torch::autograd::Node*, std::shared_ptr<variable_list>> records_;
};

/// Frees what a node has saved as soon as it has run, though the graph is kept.
struct ReleaseOnceRun : torch::autograd::FunctionPostHook {
  explicit ReleaseOnceRun(torch::autograd::Node& node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    node_.release_variables();
    return outputs;
  }
  torch::autograd::Node& node_;  // holds the hook
};

}  // namespace

void accumulate_into(std::span<const at::Tensor> tensors, const std::vector<at::Tensor>& gradients) {
  edge_list roots;
  for (const at::Tensor& tensor : tensors) roots.push_back(edge_of(tensor));
  accumulate(roots, gradients);
}

BackwardPlanner::BackwardPlanner() : plan_(std::make_unique<SplitPlan>()) {}
BackwardPlanner::~BackwardPlanner() = default;
BackwardPlanner::BackwardPlanner(BackwardPlanner&&) noexcept = default;
BackwardPlanner& BackwardPlanner::operator=(BackwardPlanner&&) noexcept = default;
int BackwardPlanner::times_learnt() const { return plan_->times_learnt; }

void Backward::reset(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs) {
  state_ = State::kPending;
  inputs_.assign(inputs.begin(), inputs.end());
  root_gradients_.clear();
  roots_.clear();
  roots_.reserve(outputs.size());
  for (const at::Tensor& output : outputs) roots_.push_back(edge_of(output));
}

void Backward::require_pending(const std::vector<at::Tensor>& gradients) const {
  if (state_ != State::kPending) {
    throw InvalidArgument(
        "the backward of this microbatch has run already: each forward has one B, or one I and one W");
  }
  if (gradients.size() != roots_.size()) {
    throw InvalidArgument("a backward takes one gradient per output: got " + std::to_string(gradients.size()) +
                          " gradients for " + std::to_string(roots_.size()) + " outputs");
  }
}

void Backward::run(const std::vector<at::Tensor>& gradients) const {
  const auto counts = [&](std::size_t i) { return roots_[i].is_valid() && gradients[i].defined(); };
  std::size_t counting = 0;
  for (std::size_t i = 0; i < roots_.size(); ++i) counting += counts(i) ? 1 : 0;
  if (counting == roots_.size()) {
    accumulate(roots_, gradients);
  } else {
    edge_list roots;
    variable_list arriving;
    for (std::size_t i = 0; i < roots_.size(); ++i) {
      if (!counts(i)) continue;
      roots.push_back(roots_[i]);
      arriving.push_back(gradients[i]);
    }
    accumulate(roots, arriving);
  }
}

std::vector<at::Tensor> Backward::full(const std::vector<at::Tensor>& gradients) {
  require_pending(gradients);
  run(gradients);
  return take_input_gradients();
}

std::vector<at::Tensor> Backward::full_within(
    const std::vector<at::Tensor>& gradients,
    const std::function<void(const std::function<void()>& backward)>& around) {
  require_pending(gradients);
  bool has_run = false;
  around([&] {
    if (std::exchange(has_run, true)) throw InvalidArgument("the backward of an overlap was run twice: run it once");
    run(gradients);
  });
  const auto needs = [](const at::Tensor& input) { return input.defined() && input.requires_grad(); };
  const auto lacks = [&](const at::Tensor& input) { return !needs(input) || !input.grad().defined(); };
  if (!has_run && std::any_of(inputs_.begin(), inputs_.end(), needs) &&
      std::all_of(inputs_.begin(), inputs_.end(), lacks)) {
    throw InvalidArgument(
        "the backward of an overlap was not run: no input of it has a gradient; call the backward that was given, or "
        "add gradients to the .grad of the inputs");
  }
  return take_input_gradients();
}

std::vector<at::Tensor> Backward::take_input_gradients() {
  roots_.clear();
  std::vector<at::Tensor> result;
  result.reserve(inputs_.size());
  for (const at::Tensor& input : inputs_) {
    result.push_back(input.defined() && input.requires_grad() ? std::move(input.mutable_grad()) : at::Tensor());
    if (result.back().defined()) input.mutable_grad().reset();
  }
  inputs_.clear();
  state_ = State::kDone;
  return result;
}

std::vector<at::Tensor> Backward::input_part(const std::vector<at::Tensor>& gradients, BackwardPlanner& planner) {
  require_pending(gradients);
  SplitPlan& plan = *planner.plan_;
  edge_list inputs;
  for (const at::Tensor& input : inputs_) inputs.push_back(edge_of(input));
  SplitPlan::Nodes nodes;
  if (!plan.match(roots_, inputs, nodes)) plan.learn(roots_, inputs, nodes);
  if (plan.is_indivisible()) {
    TORCH_WARN_ONCE(
        "a stage with a part that torch.compile has compiled, or that a reentrant torch.utils.checkpoint computes "
        "again, "
        "has no gradients of inputs without those of weights: its whole backward runs in the place of I");
    nodes.clear();
    std::vector<at::Tensor> of_inputs = full(gradients);
    state_ = State::kSplit;
    return of_inputs;
  }

  edge_list roots;
  variable_list arriving;
  edge_list later;
  variable_list later_gradients;
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    if (plan.on_path(i)) {
      roots.push_back(roots_[i]);
      arriving.push_back(gradients[i]);
    } else if (plan.only_weights(i)) {
      later.push_back(roots_[i]);
      later_gradients.push_back(gradients[i]);
    }
  }

  std::vector<at::Tensor> result(inputs_.size());
  if (!roots.empty()) {
    edge_list wanted;  // the inputs, then what arrives at the forks
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (plan.reaches(i)) wanted.push_back(inputs[i]);
    }
    const std::size_t forks_begin = wanted.size();
    for (const auto& arrival : plan.arrivals()) wanted.emplace_back(*nodes[arrival.node], arrival.input);
    RecordedHooks hooks(wanted, forks_begin);
    for (const SplitPlan::Index spent : plan.spent()) {
      (*nodes[spent])->add_post_hook(std::make_unique<ReleaseOnceRun>(**nodes[spent]));
    }
    variable_list found = torch::autograd::Engine::get_default_engine().execute(
        roots, arriving, /*keep_graph=*/!plan.arrivals().empty(), /*create_graph=*/false, /*accumulate_grad=*/false,
        wanted);
    for (std::size_t i = 0, next = 0; i < inputs.size(); ++i) {
      if (plan.reaches(i)) result[i] = std::move(found[next++]);
    }
    for (std::size_t i = forks_begin; i < found.size(); ++i) {
      hooks.apply(wanted[i], found[i]);
      if (!found[i].defined()) continue;
      later.push_back(std::move(wanted[i]));
      later_gradients.push_back(std::move(found[i]));
    }
    // `later` holds the forks now: cut the path between them, which frees it.
    std::vector<NodePtr> forks;
    for (const auto& cut : plan.cuts()) forks.push_back(*nodes[cut.node]);
    for (std::size_t i = 0; i < forks.size(); ++i) forks[i]->next_edges()[plan.cuts()[i].edge] = Edge();
  }
  roots_ = std::move(later);
  root_gradients_ = std::move(later_gradients);
  inputs_.clear();
  state_ = State::kSplit;
  return result;
}

void Backward::weight_part() {
  if (state_ == State::kPending || state_ == State::kEmpty) {
    throw InvalidArgument("the weight part has nothing to complete: run the input part of the microbatch first");
  }
  if (state_ == State::kDone) {
    throw InvalidArgument("the weight part of this microbatch has run already: each I has one W, and a B needs none");
  }
  state_ = State::kDone;
  const edge_list roots = std::move(roots_);
  const variable_list gradients = std::move(root_gradients_);
  roots_.clear();
  root_gradients_.clear();
  accumulate(roots, gradients);
}

}  // namespace stagecraft
