#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stagecraft/file/bytes.h"
#include "stagecraft/file/whole_file.h"

/// Files of tensors by name, in the format of the Python package of that name:
///
///     8 bytes       the length of the header, little-endian
///     header        JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
///                   "__metadata__": {"key": "text", ...}}, padded with spaces to a multiple of 8
///     data          offsets count from its beginning; the tensors fill it without gap or overlap
namespace stagecraft::safetensors {

/// Bits of one number by dtype, as the format calls it ("F32", "BF16", "BOOL", ...); 0 for what is none.
int bits_of(std::string_view dtype);

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< In the file.
  std::uint64_t bytes = 0;

  /// "F32 [2, 3]".
  [[nodiscard]] std::string text() const;
};

using Metadata = std::map<std::string, std::string>;

/// Headers above this are refused, as elsewhere.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

struct Header {
  std::vector<Entry> entries;  ///< In the order of their data.
  Metadata metadata;

  /// Of a file of `file_size` bytes that begins like this; `beginning` holds at least the header. Throws FileError with
  /// all that is wrong with it; a header that is returned can be relied on.
  static Header parse(std::string_view beginning, std::uint64_t file_size, const std::string& path);
};

/// A file open for reading. Several threads may read from it.
class Reader {
 public:
  /// Reads and checks the header. Throws FileError.
  explicit Reader(const std::string& path);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  [[nodiscard]] const std::string& path() const { return file_->name(); }
  [[nodiscard]] const std::vector<Entry>& entries() const { return header_.entries; }
  [[nodiscard]] const Metadata& metadata() const { return header_.metadata; }
  /// Null when there is none of that name.
  [[nodiscard]] const Entry* find(const std::string& name) const;

  /// `size` bytes of an entry from `offset` on, and nothing else. Throws InvalidArgument beyond its end, FileError when
  /// they cannot be read.
  void read(const Entry& entry, std::uint64_t offset, void* into, std::size_t size) const;

 private:
  std::shared_ptr<const ByteSource> file_;
  Header header_;
  std::unordered_map<std::string_view, const Entry*> by_name_;
};

/// A file being written: it appears whole when it is committed, or not at all.
class Writer {
 public:
  /// Of the entries, name, dtype and shape count. Throws InvalidArgument for a name that comes twice, and what cannot
  /// be written down; FileError.
  Writer(const std::string& path, std::vector<Entry> entries, const Metadata& metadata = {});

  /// In the order in which they must be written: wider numbers first, so that all are aligned in the file.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  /// The next bytes of the entry; entries come one after the other, each in any pieces. Throws InvalidArgument when it
  /// is not its turn or they are too many, FileError when they cannot be written.
  void write(const Entry& entry, const void* bytes, std::size_t size);
  /// Throws InvalidArgument when data is missing, FileError; then the file that was there is as it was.
  void commit();

 private:
  WholeFile file_;
  std::vector<Entry> entries_;
  std::size_t at_ = 0;         // the entry whose turn it is
  std::uint64_t written_ = 0;  // of it
};

}  // namespace stagecraft::safetensors
