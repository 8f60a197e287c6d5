#include "hidden_function.h"

#if defined(__linux__) && defined(__LP64__)

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string_view>

namespace stagecraft {
namespace {

struct Loaded {
  std::string file_name;
  std::string path;
  ElfW(Addr) base = 0;
  std::string_view code;
};

int find_library(dl_phdr_info* object, std::size_t /*size*/, void* wanted) {
  auto& loaded = *static_cast<Loaded*>(wanted);
  if (std::filesystem::path(object->dlpi_name).filename() != loaded.file_name) return 0;
  loaded.path = object->dlpi_name;
  loaded.base = object->dlpi_addr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    loaded.code = {reinterpret_cast<const char*>(object->dlpi_addr + part.p_vaddr), part.p_memsz};
  }
  return 1;
}

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status {};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      const auto size = static_cast<std::size_t>(status.st_size);
      void* const start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
      if (start != MAP_FAILED) bytes_ = {static_cast<const char*>(start), size};
    }
    close(file);
  }
  ~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Empty if the file does not have all of it.
  [[nodiscard]] std::string_view part(std::size_t offset, std::size_t size) const {
    return offset <= bytes_.size() && size <= bytes_.size() - offset ? bytes_.substr(offset, size) : std::string_view();
  }

 private:
  std::string_view bytes_;
};

template <typename T>
std::size_t count_of(std::string_view bytes) {
  return bytes.size() / sizeof(T);
}

template <typename T>
T item(std::string_view bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

/// Its header; nothing at all for another kind of file.
ElfW(Ehdr) header_of(const MappedFile& file) {
  const std::string_view start = file.part(0, sizeof(ElfW(Ehdr)));
  if (start.empty() || start.substr(0, SELFMAG) != ELFMAG || start[EI_CLASS] != ELFCLASS64) return {};
  return item<ElfW(Ehdr)>(start, 0);
}

/// The function of this name; of size 0 if there is none.
ElfW(Sym) find_function(const MappedFile& file, const std::string& name) {
  const ElfW(Ehdr) header = header_of(file);
  const std::string_view sections = file.part(header.e_shoff, header.e_shnum * sizeof(ElfW(Shdr)));
  for (std::size_t i = 0; i < count_of<ElfW(Shdr)>(sections); ++i) {
    const auto table = item<ElfW(Shdr)>(sections, i);
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= count_of<ElfW(Shdr)>(sections)) continue;
    const auto names = item<ElfW(Shdr)>(sections, table.sh_link);
    const std::string_view symbols = file.part(table.sh_offset, table.sh_size);
    const std::string_view text = file.part(names.sh_offset, names.sh_size);
    const std::string wanted = '\0' + name + '\0';
    const void* const found = memmem(text.data(), text.size(), wanted.data(), wanted.size());
    if (found == nullptr) continue;
    const auto place = static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) + 1;
    for (std::size_t k = 0; k < count_of<ElfW(Sym)>(symbols); ++k) {
      const auto symbol = item<ElfW(Sym)>(symbols, k);
      if (symbol.st_name == place && (symbol.st_info & 0xf) == STT_FUNC && symbol.st_shndx != SHN_UNDEF) return symbol;
    }
  }
  return {};
}

/// Whether the function's code is what the file says: the file may have been replaced since the library was loaded.
bool is_loaded(const MappedFile& file, const ElfW(Sym) & function, const Loaded& loaded) {
  const ElfW(Addr) place = loaded.base + function.st_value - reinterpret_cast<ElfW(Addr)>(loaded.code.data());
  if (place > loaded.code.size() || function.st_size > loaded.code.size() - place) return false;
  const ElfW(Ehdr) header = header_of(file);
  const std::string_view parts = file.part(header.e_phoff, header.e_phnum * sizeof(ElfW(Phdr)));
  for (std::size_t i = 0; i < count_of<ElfW(Phdr)>(parts); ++i) {
    const auto part = item<ElfW(Phdr)>(parts, i);
    const bool holds = part.p_type == PT_LOAD && function.st_value >= part.p_vaddr &&
                       function.st_value - part.p_vaddr + function.st_size <= part.p_filesz;
    if (!holds) continue;
    const std::string_view saved = file.part(part.p_offset + (function.st_value - part.p_vaddr), function.st_size);
    return !saved.empty() && saved == loaded.code.substr(place, function.st_size);
  }
  return false;
}

}  // namespace

void* hidden_function(const std::string& library, const std::string& name) {
  Loaded loaded{.file_name = library, .path = {}, .code = {}};
  dl_iterate_phdr(find_library, &loaded);
  if (loaded.path.empty()) return nullptr;
  const MappedFile file(loaded.path);
  const ElfW(Sym) function = find_function(file, name);
  if (function.st_size == 0 || !is_loaded(file, function, loaded)) return nullptr;
  return reinterpret_cast<void*>(loaded.base + function.st_value);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace stagecraft

#else

namespace stagecraft {

void* hidden_function(const std::string& /*library*/, const std::string& /*name*/) { return nullptr; }

}  // namespace stagecraft

#endif
