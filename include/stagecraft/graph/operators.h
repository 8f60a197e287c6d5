#pragma once

#include "stagecraft/graph/program.h"

/// What running a node does beside returning new tensors.
namespace stagecraft::graph {

struct Effects {
  std::vector<ValueId> changes;  ///< Tensors that it changes in place.
  std::vector<ValueId> shares;   ///< Tensors with which its results may share memory.
  bool random = false;           ///< Twice the same inputs may give two results.
};
Effects effects_of(const Node& node);

/// By value: whether a node changes its memory, directly or through a tensor that may share it.
std::vector<bool> changed_values(const Program& program);

/// By the name of an operator of LibTorch ("aten::add_.Tensor"): whether it changes its first argument, whether its
/// result may share memory with its arguments.
bool changes_first_argument(std::string_view name);
bool may_share_memory(std::string_view name);
/// The arguments that it changes beside the first, by name.
std::vector<std::string_view> changed_arguments(std::string_view name);

/// It reads a size or stride off a tensor, and nothing of its elements.
bool reads_size(const Node& node);
/// It computes a number from numbers.
bool computes_number(const Node& node);

/// An estimate of the work of its forward, in floating-point operations with the sizes of the export.
double work_of(const Program& program, const Node& node);

}  // namespace stagecraft::graph
