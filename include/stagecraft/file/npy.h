#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/file/bytes.h"

/// Arrays in the file format of numpy.save:
///
///     6 bytes         \x93NUMPY
///     2 bytes         the version: 1.0, 2.0 or 3.0
///     2 or 4 bytes    the length of the header (4 from version 2.0 on), little-endian
///     header          a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
///     data            to the end of the file
namespace stagecraft::npy {

struct Header {
  std::string dtype;  ///< As in safetensors files: "F32", "U16", "BOOL".
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< Where the data begins in the file.
  std::uint64_t bytes = 0;  ///< Of the data.

  /// Reads and checks the header of a file of `file_size` bytes; `beginning` holds at least the header. Throws
  /// FileError for a file of another kind or length, for elements that are big-endian, Python objects or records, and
  /// for an array in Fortran order.
  static Header parse(std::string_view beginning, std::uint64_t file_size, const std::string& path);

  /// "F32 [2, 3]".
  [[nodiscard]] std::string text() const;
};

/// Longer headers are refused.
inline constexpr std::uint64_t kMostHeaderBytes = 1 << 20;

/// A file mapped into memory. Several threads may read from it.
class Reader {
 public:
  /// Reads and checks the header. Throws FileError.
  explicit Reader(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_->name(); }
  [[nodiscard]] const Header& header() const { return header_; }
  [[nodiscard]] const ByteSource& file() const { return *file_; }
  /// Reads `size` bytes of the data from `offset` on. Throws FileError beyond the end.
  void read(std::uint64_t offset, void* into, std::size_t size) const;

 private:
  std::shared_ptr<const ByteSource> file_;
  Header header_;
};

}  // namespace stagecraft::npy
