#pragma once

/// LibTorch's operators, made safe to call from several threads of one process.
namespace stagecraft {

/// Call it before `threads` threads of this process compute at the same time. Two libraries behind LibTorch are not
/// thread-safe and would silently give wrong numbers: MKL, which picks kernels at the first call, and oneDNN on
/// aarch64, where threads share primitives. Affects the whole process for good. Any thread may call it, any number of
/// times.
void make_operators_safe(int threads);

/// Call it before a computation in bfloat16. On an aarch64 processor without such instructions the first linear layer
/// makes LibTorch give up oneDNN for the whole process; convolutions then compute with other kernels, and give other
/// bits than before. This makes that happen now.
void settle_bfloat16_kernels();

}  // namespace stagecraft
