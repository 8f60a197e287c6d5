#pragma once

#include <cstddef>
#include <functional>

/// A parallel loop over the rows of large schedules.
namespace stagecraft {

/// Splits [0, count) into consecutive parts and calls `work(begin, end)` for each in a thread of its own; the parts
/// must not share data that they write. The number of parts depends on the cores and on `size`, the total number of
/// actions: a small schedule is one part, run by the calling thread. If several parts throw, the exception of the part
/// with the lowest indices is rethrown.
void in_parts(std::size_t count, std::size_t size, const std::function<void(std::size_t, std::size_t)>& work);

}  // namespace stagecraft
