#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace stagecraft {

/// Work of a device that was captured. It keeps the memory that the work uses.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Issues all of it to the current stream.
  virtual void replay() = 0;
};

/// Captures graphs on one device, all in one private pool of memory: replay them on one stream. Used by one thread;
/// those of several threads may share a device.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;

  /// Captures what `work` issues to the current stream, and to streams that wait for it, instead of running it. When
  /// `work` throws, or does what cannot be captured, the capture is ended and an exception thrown. `makes_room`: first
  /// returns what LibTorch has cached to the device, which waits for it.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work, bool makes_room) = 0;

  /// Whether what is issued to the current stream is captured.
  [[nodiscard]] virtual bool is_capturing() const = 0;

  /// During a capture: streams that nobody else uses until it ends, for branches of the graph.
  virtual std::vector<c10::Stream> branches(std::size_t count) = 0;

  /// During a capture: the current stream records an event at every replay. The event was recorded before, outside.
  virtual void record(const c10::Event& event) = 0;

  /// During a capture: a generator whose kernels read seed and first offset from these tensors, one number each, when
  /// they are replayed, and which has come `begin` beyond that offset. The tensors must outlive the graph.
  virtual at::Generator generator(const at::Tensor& seed, const at::Tensor& offset, std::uint64_t begin) = 0;
  /// How far one of these generators has come beyond its first offset.
  [[nodiscard]] virtual std::uint64_t offset_of(const at::Generator& generator) const = 0;

  /// Bytes that captures have taken from the device so far.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
};

/// Null if LibTorch has no CUDA.
std::unique_ptr<GraphDevice> make_graph_device(c10::Device device);

}  // namespace stagecraft
