#include "library.h"

#include <dlfcn.h>

#include <type_traits>

#include "stagecraft/core/error.h"

namespace stagecraft::nccl {
namespace {

bool load(Library& functions) {
  // LibTorch for CUDA has brought it, unless it is linked into LibTorch and hidden there.
  if (::dlsym(RTLD_DEFAULT, "ncclGetUniqueId") == nullptr) ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  const auto find = [](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  };
#define STAGECRAFT_FIND(name) find(functions.name, #name)
  return STAGECRAFT_FIND(ncclGetVersion) && STAGECRAFT_FIND(ncclGetUniqueId) && STAGECRAFT_FIND(ncclCommInitRank) &&
         STAGECRAFT_FIND(ncclCommAbort) && STAGECRAFT_FIND(ncclGetErrorString) && STAGECRAFT_FIND(ncclGetLastError) &&
         STAGECRAFT_FIND(ncclSend) && STAGECRAFT_FIND(ncclRecv) && STAGECRAFT_FIND(ncclBroadcast) &&
         STAGECRAFT_FIND(ncclAllReduce) && STAGECRAFT_FIND(ncclAllGather) && STAGECRAFT_FIND(ncclReduceScatter) &&
         STAGECRAFT_FIND(ncclGroupStart) && STAGECRAFT_FIND(ncclGroupEnd);
#undef STAGECRAFT_FIND
}

}  // namespace

const Library* library() {
  static Library functions;
  static const bool is_there = load(functions);
  return is_there ? &functions : nullptr;
}

const Library& need_library() {
  const Library* found = library();
  if (found != nullptr) return *found;
  throw TransportError(
      "there is no NCCL (libnccl.so.2) that this process could load: use a LibTorch for CUDA, which brings it, or put "
      "the"
      " folder of libnccl.so.2 into LD_LIBRARY_PATH",
      RankId());
}

std::string version_text() {
  int version = 0;
  if (library() == nullptr || library()->ncclGetVersion(&version) != kSuccess) return {};
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

void check(int result, const char* call, Comm comm) {
  if (result == kSuccess) return;
  const Library& nccl = need_library();
  const std::string last = nccl.ncclGetLastError(comm);
  std::string text = std::string(call) + " has failed: " + nccl.ncclGetErrorString(result);
  if (!last.empty()) text += " (" + last.substr(0, last.find('\n')) + ")";
  if (last.find("Duplicate GPU") != std::string::npos) {
    text +=
        "; two ranks compute on one GPU: give each its own, or set NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL 2.30 or later"
        " (this is " +
        version_text() + ")";
  }
  throw TransportError(text, RankId());
}

}  // namespace stagecraft::nccl
