#pragma once

#include <functional>

#include "stagecraft/graph/program.h"

/// Side effects and cost of nodes.
namespace stagecraft::graph {

struct Effects {
  std::vector<ValueId> changes;  ///< Tensors that the node changes in place.
  std::vector<ValueId> shares;   ///< Tensors that its results may share memory with.
  bool random = false;           ///< The same inputs may give different results.
};
Effects effects_of(const Node& node);

/// By value: whether any node changes its memory, directly or through a tensor that may share it.
std::vector<bool> changed_values(const Program& program);

/// For the name of a LibTorch operator ("aten::add_.Tensor"): whether it changes its first argument in place, and
/// whether its result may share memory with its arguments.
bool changes_first_argument(std::string_view name);
bool may_share_memory(std::string_view name);
/// Names of the arguments, besides the first, that the operator changes in place.
std::vector<std::string_view> changed_arguments(std::string_view name);

/// Whether Stagecraft itself brings the operator.
bool is_own_operator(std::string_view target);
/// Whether LibTorch registers operators of this one's namespace itself.
bool is_in_libtorch(std::string_view target);

struct MissingOperator {
  std::string name;
  int nodes = 0;  ///< How many nodes call it.
};
/// The operators that neither LibTorch nor Stagecraft has, as far as their names tell, by name.
std::vector<MissingOperator> missing_operators(const Program& program);
/// What to do about an operator that is missing.
std::string remedy_for_missing(std::string_view target);
/// "mylib::scale (2 nodes): bring them with ..."; operators with the same remedy together.
std::string missing_text(const std::vector<MissingOperator>& missing);

/// Whether the node reads only the shape, strides or offset of a tensor, not its elements.
bool reads_size(const Node& node);
/// Whether the node computes a number from numbers.
bool computes_number(const Node& node);

/// For control flow: what its bodies change and share, among the values around it.
Effects control_flow_effects(const Node& node);
/// How often a scan or map runs its body, with the sizes at export; 1 for other nodes, and for a loop, where it is not
/// known.
double iterations_of(const Program& program, const Node& node);
/// The cost of all nodes in the bodies of control flow, times the iterations; of the dearer of two branches.
double over_bodies(const Program& program, const Node& node, const std::function<double(const Node&)>& cost);

/// Estimated floating-point operations of the node's forward, with the sizes at export.
double work_of(const Program& program, const Node& node);

}  // namespace stagecraft::graph
