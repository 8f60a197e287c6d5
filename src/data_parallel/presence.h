#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "stagecraft/transport/group.h"

namespace stagecraft {

/// Which gradients some replica has: a parameter may have none on those whose microbatches did not use it.
class Presence {
 public:
  /// Throws InvalidArgument for a sparse gradient.
  void add(const std::string& name, const at::Tensor& gradient);
  /// Called by all replicas, with the same parameters.
  void share(Group& peers);
  [[nodiscard]] bool any() const { return some_.find('1') != std::string::npos; }
  /// By parameter, in the order of `add`.
  [[nodiscard]] bool operator[](std::size_t i) const { return some_[i] == '1'; }

 private:
  std::string some_;  // by parameter: '1' or '0'
};

}  // namespace stagecraft
