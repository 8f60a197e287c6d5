// In place of cuda/ where LibTorch has no CUDA.

#include "graph_device.h"

namespace stagecraft {

std::unique_ptr<GraphDevice> make_graph_device(c10::Device /*device*/) { return nullptr; }

}  // namespace stagecraft
