// For LibTorch without CUDA.

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {

namespace {

[[noreturn]] void refuse(c10::Device device) {
  throw InvalidArgument("this LibTorch has no CUDA: there is no device " + device.str());
}

}  // namespace

bool has_streams(c10::Device device) { return !device.is_cpu(); }
c10::Stream unshared_stream(c10::Device device, bool /*is_urgent*/) { refuse(device); }
std::string place_of_gpu(c10::Device device) { refuse(device); }

}  // namespace stagecraft
