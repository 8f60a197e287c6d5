#include "stagecraft/runtime/rank_scope.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/transport/streams.h"
#include "warnings.h"

namespace stagecraft {
namespace {

/// Makes glibc keep freed memory. A stage frees all memory of a microbatch at once; by default, glibc would return it
/// to the system, and the next microbatch would pay for every page again. The user's own MALLOC_ settings stay.
void keep_freed_memory() {
#ifdef __GLIBC__
  static const bool once = [] {
    constexpr int kLargestHeapBlock = 32 << 20;  // glibc's limit
    constexpr int kKept = 1 << 30;
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, kLargestHeapBlock);
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) mallopt(M_TRIM_THRESHOLD, kKept);
    return true;
  }();
  (void)once;
#endif
}

/// On a device with streams, gives the rank a stream of its own, so that ranks that share a device do not wait for each
/// other. The stream starts after everything on the stream that was current before; at the end, that one waits for it.
class OwnStream {
 public:
  explicit OwnStream(at::Device device) {
    if (device.is_cpu()) return;
    before_ = current_stream(device);
    own_.emplace(device);
    run_after(own_->get(), *before_);
    guard_.emplace(own_->get());
  }
  ~OwnStream() {
    try {
      if (own_) run_after(*before_, own_->get());
    } catch (
        const c10::Error&) {  // NOLINT(bugprone-empty-catch): the device has failed, and nothing runs there any more
    }
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
  std::optional<LentStream> own_;
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace

class RankScope::Implementation {
 public:
  Implementation(c10::Device device, int threads)
      : device_(with_index(device)),
        guard_(device_),
        stream_(device_),
        threads_before_(at::get_num_threads()),
        autograd_before_(c10::AutogradState::get_tls_state()) {
    keep_freed_memory();
    at::set_num_threads(std::max(1, threads));
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~Implementation() {
    at::set_num_threads(threads_before_);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(autograd_before_.get_multithreading_enabled());
  }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  c10::Device device_;
  c10::OptionalDeviceGuard guard_;
  OwnStream stream_;
  int threads_before_;
  c10::AutogradState autograd_before_;
  c10::WarningUtils::WarningHandlerGuard warnings_{&brief_warnings()};
};

RankScope::RankScope(c10::Device device, int threads) try
    : implementation_(std::make_unique<Implementation>(device, threads)) {
} catch (const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  if (text.find("out of memory") == std::string::npos) throw;
  throw Error("a rank cannot begin on " + device.str() + " (" + first_line(text) +
              "): other programs hold its memory, or too many processes share it: start fewer, or set "
              "CUDA_DEVICE_MAX_CONNECTIONS=8, because the GPU has so many queues for each of them");
}
RankScope::~RankScope() = default;
void RankScope::finish() {
  const c10::Device own = device();
  if (!own.is_cpu()) current_stream(own).synchronize();
}
c10::Device RankScope::device() const { return implementation_->device(); }

}  // namespace stagecraft
