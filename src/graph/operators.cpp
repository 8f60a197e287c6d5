#include "stagecraft/graph/operators.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace stagecraft::graph {
namespace {

/// Operators whose schema declares that results are views, and those that return their input or a view of it although
/// the schema does not say so.
const std::set<std::string_view>& sharing_operators() {
  static const std::set<std::string_view> names = {
      "_conj", "_fw_primal", "_grad_sum_to_size", "_indices", "_make_dual", "_neg_view", "_nested_get_values",
      "_nested_view_from_buffer", "_nested_view_from_jagged", "_reshape_alias", "_sparse_broadcast_to",
      "_test_autograd_multiple_dispatch_view", "_unpack_dual", "_values", "adjoint", "alias", "align_to", "as_strided",
      "broadcast_to", "ccol_indices", "chunk", "coalesce", "col_indices", "conj", "contiguous", "crow_indices",
      "detach", "diagonal", "dsplit", "expand", "expand_as", "flatten", "hsplit", "imag", "indices", "lift_fresh",
      "linalg_diagonal", "mH", "mT", "matrix_H", "moveaxis", "movedim", "narrow", "numpy_T", "permute", "pin_memory",
      "positive", "ravel", "real", "refine_names", "rename", "reshape", "reshape_as", "resolve_conj", "resolve_neg",
      "row_indices", "select", "slice", "slice_inverse", "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims",
      "t", "tensor_split", "to", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "values", "view", "view_as",
      "view_as_complex", "view_as_real", "vsplit", "_autocast_to_full_precision", "_autocast_to_reduced_precision",
      // Not declared in the schema:
      "_unsafe_view", "alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "dropout",
      "feature_alpha_dropout", "feature_dropout", "meshgrid", "sum_to_size", "type_as", "unsafe_chunk", "unsafe_split",
      "unsafe_split_with_sizes"};
  return names;
}

const std::set<std::string_view>& random_operators() {
  static const std::set<std::string_view> names = {
      "bernoulli",      "bernoulli_",     "binomial",         "cauchy_",
      "exponential_",   "geometric_",     "log_normal_",      "multinomial",
      "native_dropout", "normal",         "normal_",          "poisson",
      "rand",           "rand_like",      "randint",          "randint_like",
      "randn",          "randn_like",     "random_",          "randperm",
      "rrelu",          "rrelu_",         "rrelu_with_noise", "rrelu_with_noise_",
      "uniform_",       "_fused_dropout", "_standard_gamma",  "_sample_dirichlet"};
  return names;
}

/// Arguments besides the first that an operator changes in place, by operator name without a trailing underscore.
const std::map<std::string_view, std::vector<std::string_view>>& changing_operators() {
  static const std::vector<std::string_view> statistics = {"running_mean", "running_var"};
  static const std::vector<std::string_view> observed = {"running_min", "running_max", "scale", "zero_point"};
  static const std::vector<std::string_view> moments = {"grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"};
  static const std::map<std::string_view, std::vector<std::string_view>> all = {
      {"_amp_foreach_non_finite_check_and_unscale", {"found_inf"}},
      {"_amp_update_scale", {"growth_tracker"}},
      {"_batch_norm_impl_index", statistics},
      {"_batch_norm_with_update", statistics},
      {"_cummax_helper", {"values", "indices"}},
      {"_cummin_helper", {"values", "indices"}},
      {"_flash_attention_forward_no_dropout_inplace", {"out"}},
      {"_fused_adagrad", {"grads", "state_sums", "state_steps"}},
      {"_fused_adam", moments},
      {"_fused_adamw", moments},
      {"_fused_moving_avg_obs_fq_helper", observed},
      {"_fused_sgd", {"grads", "momentum_buffer_list"}},
      {"_native_batch_norm_legit", statistics},
      {"batch_norm", statistics},
      {"cudnn_batch_norm", statistics},
      {"fbgemm_linear_fp16_weight", {"output"}},
      {"fbgemm_linear_fp16_weight_fp32_activation", {"output"}},
      {"fused_moving_avg_obs_fake_quant", observed},
      {"instance_norm", statistics},
      {"miopen_batch_norm", statistics},
      {"native_batch_norm", statistics},
      {"rrelu_with_noise", {"noise"}}};
  return all;
}

/// Names of the tensors that "out" overloads write their results to. Some are plain inputs in other operators; treating
/// an unchanged tensor as changed only forbids some cuts.
const std::vector<std::string_view>& names_of_results() {
  static const std::vector<std::string_view> names = {"L",
                                                      "LD",
                                                      "LU",
                                                      "M",
                                                      "P",
                                                      "Q",
                                                      "R",
                                                      "S",
                                                      "U",
                                                      "V",
                                                      "Vh",
                                                      "X",
                                                      "a",
                                                      "bin_edges",
                                                      "buffer",
                                                      "eigenvalues",
                                                      "eigenvectors",
                                                      "eigvals",
                                                      "eigvecs",
                                                      "exponent",
                                                      "grad_bias",
                                                      "grad_input",
                                                      "grad_weight",
                                                      "hist",
                                                      "indices",
                                                      "info",
                                                      "inverse",
                                                      "is_target",
                                                      "logabsdet",
                                                      "mantissa",
                                                      "max",
                                                      "max_values",
                                                      "min",
                                                      "min_indices",
                                                      "out",
                                                      "out0",
                                                      "out1",
                                                      "out2",
                                                      "out3",
                                                      "out4",
                                                      "out5",
                                                      "out6",
                                                      "output",
                                                      "pivots",
                                                      "rank",
                                                      "reserve",
                                                      "residuals",
                                                      "result",
                                                      "save_invstd",
                                                      "save_mean",
                                                      "sign",
                                                      "singular_values",
                                                      "solution",
                                                      "tau",
                                                      "total_weight",
                                                      "values"};
  return names;
}

struct Name {
  std::string_view space;
  std::string_view base;
  std::string_view overload;
};

Name name_of(std::string_view target) {
  const std::size_t colons = target.find("::");
  if (colons == std::string_view::npos) return {{}, target, {}};
  const std::string_view whole = target.substr(colons + 2);
  const std::size_t dot = std::min(whole.find('.'), whole.size());
  return {target.substr(0, colons), whole.substr(0, dot), whole.substr(std::min(dot + 1, whole.size()))};
}

/// Whether an overload writes its results to tensors that it is given.
bool writes_results(const Name& name) {
  static const std::set<std::string_view> overloads = {
      "L", "Q", "U", "X", "eigenvalues", "eigvals", "grad_input", "inverse", "output", "result", "sign"};
  static constexpr std::array<std::string_view, 5> kEndings = {"out", "dim_max", "dim_min", "values", "values_stable"};
  return name.overload.starts_with("out") || name.overload.starts_with("Out") || overloads.contains(name.overload) ||
         std::any_of(kEndings.begin(), kEndings.end(), [&](auto ending) { return name.overload.ends_with(ending); }) ||
         (name.base == "geqrf" && name.overload == "a");
}

void add_tensors(const Argument& argument, std::vector<ValueId>& all) {
  const auto add = [&](const Use& use) {
    if (use.value != kNoValue) all.push_back(use.value);
  };
  if (const auto* use = std::get_if<Use>(&argument)) add(*use);
  if (const auto* uses = std::get_if<Uses>(&argument)) {
    for (const Use& use : *uses) add(use);
  }
}

bool is_set(const Node& node, std::string_view flag, bool otherwise) {
  const Argument* given = node.argument(flag);
  const auto* value = given == nullptr ? nullptr : std::get_if<bool>(given);
  return value == nullptr ? otherwise : *value;
}

bool draws(const Node& node, std::string_view base) {
  if (random_operators().contains(base)) return true;
  if (base.find("dropout") != std::string_view::npos) return is_set(node, "train", true);
  // Dropout in attention, and between recurrent layers.
  const Argument* rate = node.argument("dropout_p");
  if (rate == nullptr && is_set(node, "train", false)) rate = node.argument("dropout");
  if (rate == nullptr) return false;
  const auto* value = std::get_if<double>(rate);
  return value == nullptr || *value != 0;
}

}  // namespace

bool changes_first_argument(std::string_view name) {
  const std::string_view base = name_of(name).base;
  if (base == "record_stream" || base == "retain_grad" || base == "set_data") return true;
  static constexpr std::array kDouble = {"__iand__", "__ior__",  "__ixor__", "__ilshift__", "__irshift__",
                                         "__iadd__", "__isub__", "__imul__", "__idiv__"};
  if (std::find(kDouble.begin(), kDouble.end(), base) != kDouble.end()) return true;
  return base.ends_with('_') && !base.ends_with("__");
}

bool may_share_memory(std::string_view name) {
  const Name own = name_of(name);
  if (is_own_operator(name)) return false;
  if (own.space != "aten") return true;  // a custom operator: nothing is known about it
  return sharing_operators().contains(own.base) || changes_first_argument(name) || writes_results(own);
}

std::vector<std::string_view> changed_arguments(std::string_view name) {
  const Name own = name_of(name);
  std::vector<std::string_view> changed;
  const std::string_view base = changes_first_argument(name) ? own.base.substr(0, own.base.size() - 1) : own.base;
  if (const auto found = changing_operators().find(base); found != changing_operators().end()) changed = found->second;
  if (writes_results(own)) changed.insert(changed.end(), names_of_results().begin(), names_of_results().end());
  return changed;
}

Effects effects_of(const Node& node) {
  if (node.is_control_flow()) return control_flow_effects(node);
  Effects effects;
  const auto [space, base, overload] = name_of(node.target);
  const bool unknown = !space.empty() && space != "aten" && !is_own_operator(node.target);
  effects.random = unknown || draws(node, base);
  if (changes_first_argument(node.target) && !node.arguments.empty()) {
    add_tensors(node.arguments.front().value, effects.changes);
  }
  // In evaluation, running statistics are not updated.
  const bool keeps = !is_set(node, "training", true) || !is_set(node, "use_input_stats", true);
  for (const std::string_view name : changed_arguments(node.target)) {
    const Argument* given = node.argument(name);
    if (given != nullptr && !keeps) add_tensors(*given, effects.changes);
  }
  if (unknown || may_share_memory(node.target)) {
    for (const NamedArgument& given : node.arguments) add_tensors(given.value, effects.shares);
  }
  return effects;
}

bool reads_size(const Node& node) {
  return node.target.starts_with("aten::sym_size") || node.target.starts_with("aten::sym_numel") ||
         node.target.starts_with("aten::sym_stride") || node.target.starts_with("aten::sym_storage_offset");
}

bool computes_number(const Node& node) {
  return node.target.starts_with("_operator.") || node.target.starts_with("torch.sym_") ||
         node.target.starts_with("math.") || node.target.starts_with("builtins.");
}

}  // namespace stagecraft::graph
