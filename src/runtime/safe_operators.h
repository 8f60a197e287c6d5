#pragma once

/// LibTorch's operators, made safe to call from several threads of one process.
namespace stagecraft {

/// Call it before `threads` of this process compute side by side. Libraries behind LibTorch are not safe between
/// threads in two ways that give wrong numbers in silence: kernels that are picked at the first call (MKL), and
/// primitives that several threads use at once (oneDNN on aarch64). The effect is on the whole process and stays. Any
/// thread may call it, any number of times.
void make_operators_safe(int threads);

}  // namespace stagecraft
