#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

/// Devices of any type and their streams, without the headers of a backend.
namespace stagecraft {

/// Adds the index of the current device to one without, such as "cuda".
inline c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// For a thread of our own. Without it, a call about another device may take memory of the first one.
inline void set_current_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

/// Whether work for it is issued to streams. On a CPU it is done at once.
bool has_streams(c10::Device device);

inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

inline void set_current_stream(const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
}

inline c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

/// Which GPU it is among all of this host, also where processes see different ones: CUDA_VISIBLE_DEVICES. Throws
/// InvalidArgument if LibTorch has no CUDA.
std::string place_of_gpu(c10::Device device);

/// A stream of a GPU that nobody else gets: the pool behind `new_stream` gives a few out again and again, and what
/// waits on one for another rank would hold up whoever has the same one. `is_urgent`: its kernels go before others.
/// Throws InvalidArgument if LibTorch has no CUDA.
c10::Stream unshared_stream(c10::Device device, bool is_urgent);

/// A stream that nobody else has meanwhile; for a GPU, not one of the pool's. While a graph is captured on a stream,
/// whatever any thread issues there becomes a part of it.
class LentStream {
 public:
  explicit LentStream(c10::Device device);
  /// What it was used for may still run: the next one to get it comes after that.
  ~LentStream();
  LentStream(const LentStream&) = delete;
  LentStream& operator=(const LentStream&) = delete;

  [[nodiscard]] const c10::Stream& get() const { return stream_; }

 private:
  c10::Stream stream_;
};

/// Makes what is issued to `second` from now on wait for what was issued to `first` so far. Does not block the host.
inline void run_after(const c10::Stream& second, const c10::Stream& first) {
  c10::Event done(first.device_type());
  done.record(first);
  done.block(second);
}

}  // namespace stagecraft
