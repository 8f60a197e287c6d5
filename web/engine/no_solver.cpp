// A page cannot start the program that solves exactly.

#include "solver.h"
#include "stagecraft/core/error.h"

namespace stagecraft::detail {

Solution solve_lp(const std::string&, std::size_t, double) {
  throw InvalidArgument("an exact plan needs COIN-OR CBC, which a page cannot start: use `stagecraft plan --exact`");
}

}  // namespace stagecraft::detail
