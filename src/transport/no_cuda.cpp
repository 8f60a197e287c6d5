// For LibTorch without CUDA.

#include "nccl/communicator.h"
#include "stagecraft/core/error.h"

namespace stagecraft::nccl {

c10::Stream unshared_stream(c10::Device device) {
  throw InvalidArgument("this LibTorch has no CUDA: there is no device " + device.str());
}

}  // namespace stagecraft::nccl
