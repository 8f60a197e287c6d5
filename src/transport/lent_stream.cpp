#include <map>
#include <mutex>
#include <vector>

#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

/// Streams that nobody has at the moment, by device.
struct Free {
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::vector<c10::Stream>> streams;

  static Free& all() {
    static Free& one = *new Free;  // never destroyed: threads may end after the program's last line
    return one;
  }
};

c10::Stream taken(c10::Device device) {
  if (!device.is_cuda()) return new_stream(device);
  {
    Free& free = Free::all();
    const std::lock_guard lock(free.mutex);
    std::vector<c10::Stream>& streams = free.streams[device.index()];
    if (!streams.empty()) {
      const c10::Stream stream = streams.back();
      streams.pop_back();
      return stream;
    }
  }
  return unshared_stream(device, /*is_urgent=*/false);
}

}  // namespace

LentStream::LentStream(c10::Device device) : stream_(taken(with_index(device))) {}

LentStream::~LentStream() {
  if (!stream_.device().is_cuda()) return;
  Free& free = Free::all();
  const std::lock_guard lock(free.mutex);
  free.streams[stream_.device_index()].push_back(stream_);
}

}  // namespace stagecraft
