#include "safe_operators.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#if defined(__aarch64__) && defined(__linux__)
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "hidden_function.h"
#endif

namespace stagecraft {
namespace {

/// MKL's vector functions pick their kernels at the first call. If several threads make it at once, now and then one of
/// them computes with the kernel of lowest precision, 11 bits. So this thread makes the first call.
void pick_vector_kernels() {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) at::ones({64}, type).sqrt_();
}

#if defined(__aarch64__) && defined(__linux__)

// oneDNN caches primitives per process, so two threads that compute the same shape use one object. On aarch64 the
// object may wrap a kernel of the Arm Compute Library that stores pointers of the current call: a depthwise convolution
// may add the bias of the other thread's call. Without the cache, each call makes its own primitive, which takes longer
// and computes the same.
constexpr const char* kCapacity = "ONEDNN_PRIMITIVE_CACHE_CAPACITY";

/// Whether the user switched the cache off. oneDNN looks at its first primitive, so later changes do not count.
const bool is_off_from_the_start = [] {
  const char* capacity = std::getenv(kCapacity);
  return capacity != nullptr && std::string_view(capacity) == "0";
}();

/// LibTorch has oneDNN's functions inside and does not export them.
bool switch_cache_off() {
  void* const function = hidden_function("libtorch_cpu.so", "dnnl_set_primitive_cache_capacity");
  return function != nullptr && reinterpret_cast<int (*)(int)>(function)(0) == 0;
}

void separate_primitives() {
  if (!at::globalContext().userEnabledMkldnn()) return;
  static const bool each_call_has_its_own = is_off_from_the_start || switch_cache_off();
  if (each_call_has_its_own) return;
  at::globalContext().setUserEnabledMkldnn(false);
  std::cerr << "stagecraft: ranks as threads compute without oneDNN, whose cache of primitives is not safe between "
               "threads on this processor; start the process with "
            << kCapacity << "=0 to compute with it\n";
}

#else

void separate_primitives() {}

#endif

}  // namespace

void settle_bfloat16_kernels() {
  if (!at::globalContext().userEnabledMkldnn()) return;
  /// LibTorch's warning says what this function is about, to nobody's use.
  class Silence : public c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  const at::NoGradGuard no_graph;
  const at::Tensor matrix = at::ones({64, 64}, at::kBFloat16);
  at::mm(matrix, matrix.t());  // as a linear layer has it
}

void make_operators_safe(int threads) {
  pick_vector_kernels();
  if (threads > 1) separate_primitives();
}

}  // namespace stagecraft
