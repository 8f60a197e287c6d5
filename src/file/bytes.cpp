#include "stagecraft/file/bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void refuse_range(const ByteSource& source, std::uint64_t offset, std::uint64_t size,
                               std::uint64_t present) {
  throw FileError(source.name(), "bytes " + std::to_string(offset) + " to " + std::to_string(offset + size) +
                                     " are asked for, but there are only " + std::to_string(present) +
                                     ": it has become shorter while it was read: read it when nobody writes it");
}

class OpenFile : public ByteSource {
 public:
  // O_NONBLOCK, so that a FIFO without a writer is refused instead of waited for.
  explicit OpenFile(const std::string& path)
      : ByteSource(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) throw FileError(path.empty() ? "''" : path, "cannot read it: " + reason(errno) + ": check the path");
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd_);
      throw FileError(path, "cannot read it: it is no ordinary file: give one");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() override { ::close(fd_); }

  [[nodiscard]] std::uint64_t size() const override { return size_; }

  void read(std::uint64_t offset, void* into, std::size_t size) const override {
    if (offset > size_ || size > size_ - offset) refuse_range(*this, offset, size, size_);
    auto* next = static_cast<char*>(into);
    while (size > 0) {
      const ssize_t got = ::pread(fd_, next, size, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw FileError(name(), "cannot read it: " + reason(errno) + ": check the disk");
      if (got == 0) refuse_range(*this, offset, size, present_size());
      next += got;
      offset += static_cast<std::uint64_t>(got);
      size -= static_cast<std::size_t>(got);
    }
  }

 protected:
  /// The size that the file has now; 0 if it cannot be found out.
  [[nodiscard]] std::uint64_t present_size() const {
    struct stat status {};
    return ::fstat(fd_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
  std::uint64_t size_ = 0;
};

class MappedFile : public OpenFile {
 public:
  explicit MappedFile(const std::string& path) : OpenFile(path) {
    if (size() == 0) return;  // nothing to map
    begin_ = ::mmap(nullptr, size(), PROT_READ, MAP_SHARED, fd(), 0);
    if (begin_ == MAP_FAILED) {
      throw FileError(path, "cannot map it into memory: " + reason(errno) + ": raise the limit of address space");
    }
    ::madvise(begin_, size(), MADV_RANDOM);  // only a hint
  }
  ~MappedFile() override {
    if (size() > 0) ::munmap(begin_, size());
  }

  /// Asks for the size first: touching a page that the file no longer has would end the process without a word.
  void read(std::uint64_t offset, void* into, std::size_t size) const override {
    const std::uint64_t present = std::min(this->size(), present_size());
    if (offset > present || size > present - offset) refuse_range(*this, offset, size, present);
    if (size > 0) std::memcpy(into, static_cast<const char*>(begin_) + offset, size);
  }

 private:
  void* begin_ = nullptr;
};

class InMemory : public ByteSource {
 public:
  InMemory(std::string name, std::string bytes) : ByteSource(std::move(name)), bytes_(std::move(bytes)) {}

  [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }

  void read(std::uint64_t offset, void* into, std::size_t size) const override {
    if (offset > bytes_.size() || size > bytes_.size() - offset) refuse_range(*this, offset, size, bytes_.size());
    if (size > 0) std::memcpy(into, bytes_.data() + offset, size);
  }

 private:
  std::string bytes_;
};

}  // namespace

std::shared_ptr<const ByteSource> open_file(const std::string& path) { return std::make_shared<OpenFile>(path); }

std::shared_ptr<const ByteSource> map_file(const std::string& path) { return std::make_shared<MappedFile>(path); }

std::shared_ptr<const ByteSource> bytes_in_memory(std::string name, std::string bytes) {
  return std::make_shared<InMemory>(std::move(name), std::move(bytes));
}

}  // namespace stagecraft
