#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "stagecraft/transport/streams.h"

namespace stagecraft {

bool has_streams(c10::Device device) { return !device.is_cpu(); }

c10::Stream unshared_stream(c10::Device device, bool is_urgent) {
  const c10::cuda::CUDAGuard guard(device);
  int least = 0;
  int greatest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;  // never destroyed: memory that was used on it may be freed later
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, is_urgent ? greatest : least));
  return c10::cuda::getStreamFromExternal(stream, device.index());
}

}  // namespace stagecraft
