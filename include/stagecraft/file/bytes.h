#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

/// Where bytes are read from.
namespace stagecraft {

/// Bytes that stay as they are while they are read. Any number of threads may read at the same time.
class ByteSource {
 public:
  explicit ByteSource(std::string name) : name_(std::move(name)) {}
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  /// How messages call it.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  /// Throws FileError when they are not all there.
  virtual void read(std::uint64_t offset, void* into, std::size_t size) const = 0;

 private:
  std::string name_;
};

/// Nothing is read but what is asked for. Throws FileError when the file cannot be opened, or is not a file.
std::shared_ptr<const ByteSource> open_file(const std::string& path);

/// Takes the bytes along.
std::shared_ptr<const ByteSource> bytes_in_memory(std::string name, std::string bytes);

}  // namespace stagecraft
