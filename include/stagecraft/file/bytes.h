#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

/// Random-access sources of bytes: files and memory.
namespace stagecraft {

/// Bytes that must not change while they are read. Any number of threads may read at the same time.
class ByteSource {
 public:
  explicit ByteSource(std::string name) : name_(std::move(name)) {}
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  /// The name used in error messages.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  /// Reads exactly `size` bytes. Throws FileError when the source has fewer.
  virtual void read(std::uint64_t offset, void* into, std::size_t size) const = 0;

 private:
  std::string name_;
};

/// Opens a file; reads only what is requested. Throws FileError when it cannot be opened or is not a regular file.
std::shared_ptr<const ByteSource> open_file(const std::string& path);

/// Like open_file, with the file mapped into memory: what is read stays in the system's page cache, which all processes
/// share. For many small reads of a large file.
std::shared_ptr<const ByteSource> map_file(const std::string& path);

/// A source that owns its bytes.
std::shared_ptr<const ByteSource> bytes_in_memory(std::string name, std::string bytes);

}  // namespace stagecraft
