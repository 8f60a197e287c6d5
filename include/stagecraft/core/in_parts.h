#pragma once

#include <cstddef>
#include <functional>

/// Work on the rows of large schedules, on all cores.
namespace stagecraft {

/// Splits [0, count) into consecutive parts and calls `work(begin, end)` for all of them at once, a thread each; the
/// parts must not touch each other's data. How many there are follows from the cores and from `size`, the number of
/// actions behind all of it: a small schedule is one part, on this thread. Of several exceptions the one of the
/// earliest part is thrown, so that the outcome is that of a loop.
void in_parts(std::size_t count, std::size_t size, const std::function<void(std::size_t, std::size_t)>& work);

}  // namespace stagecraft
