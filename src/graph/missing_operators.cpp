// Operators that no part of LibTorch registers: those of other libraries, and what Python alone can run.

#include <algorithm>
#include <array>
#include <map>

#include "stagecraft/graph/operators.h"

namespace stagecraft::graph {
namespace {

/// Namespaces of operators that LibTorch registers itself.
constexpr auto kInLibTorch = std::to_array<std::string_view>(
    {"aten", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_quantized", "c10d", "inductor",
     "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "prepacked", "profiler", "quantization",
     "quantized", "sparse", "static_runtime", "symm_mem"});

/// Empty for a function of Python.
std::string_view namespace_of(std::string_view target) {
  const std::size_t end = target.find("::");
  return end == std::string_view::npos ? std::string_view() : target.substr(0, end);
}

bool is_present(const Node& node) {
  if (node.is_control_flow() || computes_number(node) || is_own_operator(node.target)) return true;
  return is_in_libtorch(node.target);
}

}  // namespace

bool is_own_operator(std::string_view target) { return target == "transformers::grouped_mm_fallback"; }

bool is_in_libtorch(std::string_view target) {
  return std::find(kInLibTorch.begin(), kInLibTorch.end(), namespace_of(target)) != kInLibTorch.end();
}

std::string remedy_for_missing(std::string_view target) {
  if (target.starts_with("torch._functorch."))
    return "vmap and other transforms of torch.func leave them behind: save program.run_decompositions({}) instead";
  if (target.starts_with("transformers::"))
    return "load the model with experts_implementation=\"batched_mm\" and export again";
  if (target.starts_with("prims::") || target.starts_with("quantized_decomposed::"))
    return "only Python has them: export without them";
  if (target.find("::") != std::string_view::npos)
    return "bring them with --load LIB.so (load_operators in C++): the library that registers them with TORCH_LIBRARY";
  return "only Python can call them: export without them";
}

std::vector<MissingOperator> missing_operators(const Program& program) {
  std::map<std::string, int> counts;
  for_each_node(program.nodes, [&](const Node& node) {
    if (!is_present(node)) ++counts[node.target];
  });
  std::vector<MissingOperator> missing;
  for (const auto& [name, nodes] : counts) missing.push_back({name, nodes});
  return missing;
}

std::string missing_text(const std::vector<MissingOperator>& missing) {
  std::map<std::string, std::string> by_remedy;
  for (const MissingOperator& each : missing) {
    std::string& list = by_remedy[remedy_for_missing(each.name)];
    list += (list.empty() ? "" : ", ") + each.name + " (" + std::to_string(each.nodes) +
            (each.nodes == 1 ? " node)" : " nodes)");
  }
  std::string text;
  for (const auto& [remedy, list] : by_remedy) text += (text.empty() ? "" : "; ") + list + ": " + remedy;
  return text;
}

}  // namespace stagecraft::graph
