#pragma once

#include <string>
#include <vector>

namespace stagecraft::detail {

struct Solution {
  bool proven = false;
  bool found = false;
  std::vector<double> values;  ///< By variable; 0 for those the solver leaves out.
};

/// Runs `cbc` on a program in LP format whose variables are called x0, x1, ... Throws InvalidArgument when there is no
/// cbc, or it fails.
Solution solve_lp(const std::string& program, std::size_t variables, double seconds);

}  // namespace stagecraft::detail
