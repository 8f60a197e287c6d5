#include "stagecraft/model/load_operators.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>

#include <c10/util/Exception.h>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

/// What is wrong with a file that the loader refuses.
std::string remedy_for(const std::string& path, const std::string& reason) {
  char first[4] = {};
  std::ifstream(path, std::ios::binary).read(first, sizeof(first));
  if (std::string_view(first, sizeof(first)) !=
      "\x7f"
      "ELF")
    return "it is no shared library: build one with TORCH_LIBRARY, as for torch.ops.load_library";
  if (reason.find("undefined symbol") != std::string::npos)
    return reason + ": build it against the LibTorch that Stagecraft uses";
  return reason;
}

}  // namespace

void load_operators(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw FileError(path, "no such file: give the path of the shared library that registers the operators");
  if (!std::filesystem::is_regular_file(path, ignored)) throw FileError(path, "not a file: give a shared library");
  const std::string whole = std::filesystem::absolute(path).string();  // a bare name would be searched for elsewhere
  try {
    if (::dlopen(whole.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* const reason = ::dlerror();
      throw FileError(path, "cannot be loaded: " + remedy_for(path, reason == nullptr ? "" : reason));
    }
  } catch (const c10::Error& error) {
    throw FileError(path, std::string("cannot register its operators: ") + error.what_without_backtrace());
  }
}

}  // namespace stagecraft
