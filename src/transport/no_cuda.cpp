// For LibTorch without CUDA.

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {

c10::Stream unshared_stream(c10::Device device, bool /*is_urgent*/) {
  throw InvalidArgument("this LibTorch has no CUDA: there is no device " + device.str());
}

}  // namespace stagecraft
