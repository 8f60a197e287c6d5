#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <array>

#include "stagecraft/transport/streams.h"

namespace stagecraft {

std::string place_of_gpu(c10::Device device) {
  std::array<char, 32> bus{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(bus.data(), bus.size(), with_index(device).index()));
  return bus.data();
}

}  // namespace stagecraft
