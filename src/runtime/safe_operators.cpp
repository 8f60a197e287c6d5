#include "safe_operators.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#if defined(__aarch64__) && defined(__linux__)
#include <link.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "stagecraft/transport/mpi.h"
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
// may add the bias of the other thread's call. Without the cache, each call makes its own primitive.
//
// LibTorch hides oneDNN's functions, so only the environment can switch the cache off, and oneDNN reads it once, at its
// first primitive. Every program that can start ranks as threads links this object, so the initialiser below runs
// before main(). If this code is in a library, which may be loaded too late, threads must do without oneDNN.
constexpr const char* kCapacity = "ONEDNN_PRIMITIVE_CACHE_CAPACITY";

bool cache_is_off() {
  const char* capacity = std::getenv(kCapacity);
  return capacity != nullptr && std::string_view(capacity) == "0";
}

/// Whether this code is in the main program, not in a library, which may be loaded after oneDNN was used.
bool in_main_program() {
  const auto main_first = [](dl_phdr_info* object, std::size_t, void* found) {
    const auto here = reinterpret_cast<ElfW(Addr)>(&cache_is_off);
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = object->dlpi_phdr[i];
      const ElfW(Addr) begin = object->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_LOAD && begin <= here && here < begin + part.p_memsz) *static_cast<bool*>(found) = true;
    }
    return 1;  // stop after the main program, which comes first
  };
  bool found = false;
  dl_iterate_phdr(main_first, &found);
  return found;
}

const bool each_call_has_its_own_primitive = [] {
  if (cache_is_off()) return true;
  if (is_started_by_mpi()) return false;  // one rank per process: the cache is safe, and faster
  setenv(kCapacity, "0", /*overwrite=*/0);
  return cache_is_off() && in_main_program();
}();

void separate_primitives() {
  if (each_call_has_its_own_primitive || !at::globalContext().userEnabledMkldnn()) return;
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
