#pragma once

/// LibTorch's operators, made safe to call from several threads of one process.
namespace stagecraft {

/// Call it before `threads` threads of this process compute at the same time. Two libraries behind LibTorch are not
/// thread-safe and would silently give wrong numbers: MKL, which picks kernels at the first call, and oneDNN on
/// aarch64, where threads share primitives. Affects the whole process for good. Any thread may call it, any number of
/// times.
void make_operators_safe(int threads);

}  // namespace stagecraft
