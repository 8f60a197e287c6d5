#include "stagecraft/model/load_operators.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

/// Throws FileError for a file that is no shared library, or of which a part is missing: the loader would map it, and
/// the process would die at the first access.
void check_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ElfW(Ehdr) header{};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (!file || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    throw FileError(path,
                    "it is no shared library: build one that registers the operators with TORCH_LIBRARY, as for "
                    "torch.ops.load_library");
  }
  std::error_code ignored;
  const std::uint64_t size = std::filesystem::file_size(path, ignored);
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment{};
    file.read(reinterpret_cast<char*>(&segment), sizeof(segment));
    const bool there =
        static_cast<bool>(file) && segment.p_offset <= size && segment.p_filesz <= size - segment.p_offset;
    if (there || (file && segment.p_type != PT_LOAD)) continue;
    throw FileError(path, "it is a shared library whose end is missing: copy it again, or build it again");
  }
}

std::string loading;  // NOLINT: the library whose initialisers run, for the handler below

/// An exception of a library's initialiser cannot leave the loader on every machine: then the program ends here.
[[noreturn]] void end_with_reason() {
  std::string reason = "an initialiser of the library failed";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
    reason = "an initialiser of the library threw something that is no std::exception";
  }
  std::cerr << "stagecraft: " << loading << ": cannot register its operators: " << reason << std::endl;
  std::_Exit(2);
}

class EndsWithReason {
 public:
  explicit EndsWithReason(const std::string& path) : before_(std::set_terminate(end_with_reason)) { loading = path; }
  ~EndsWithReason() { std::set_terminate(before_); }
  EndsWithReason(const EndsWithReason&) = delete;
  EndsWithReason& operator=(const EndsWithReason&) = delete;

 private:
  std::terminate_handler before_;
};

}  // namespace

void load_operators(const std::string& path) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw FileError(path, "no such file: give the path of the shared library that registers the operators");
  if (!std::filesystem::is_regular_file(path, ignored)) throw FileError(path, "not a file: give a shared library");
  check_whole(path);
  const std::string whole = std::filesystem::absolute(path).string();  // a bare name would be searched for elsewhere
  try {
    const EndsWithReason guard(path);
    if (::dlopen(whole.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  } catch (const c10::Error& error) {
    throw FileError(path, std::string("cannot register its operators: ") + error.what_without_backtrace());
  }
  const char* const said = ::dlerror();
  const std::string reason = said == nullptr ? "" : said;
  const bool other_libtorch = reason.find("undefined symbol") != std::string::npos;
  throw FileError(path, "cannot be loaded: " + reason +
                            (other_libtorch ? ": build it against the LibTorch that Stagecraft uses" : ""));
}

}  // namespace stagecraft
