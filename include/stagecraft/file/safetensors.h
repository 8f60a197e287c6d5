#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/file/bytes.h"
#include "stagecraft/file/checksum.h"
#include "stagecraft/file/whole_file.h"

/// Files of named tensors in the format of the Python package safetensors:
///
///     8 bytes       the length of the header, little-endian
///     header        JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
///                   "__metadata__": {"key": "text", ...}}, padded with spaces to a multiple of 8
///     data          offsets count from its beginning; the tensors fill it without gap or overlap
///
/// Files written here have checksums (XXH64, 16 hexadecimal digits) in their metadata: "stagecraft.xxh64.<tensor>" of a
/// tensor's data, and "stagecraft.xxh64" of the rest of the header. Files without checksums can be read too.
namespace stagecraft::safetensors {

/// Bits per element of a dtype of the format ("F32", "BF16", "BOOL", ...); 0 for an unknown dtype.
int bits_of(std::string_view dtype);

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< Offset in the file.
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> checksum = std::nullopt;  ///< Of its data; none if the file has no checksums.

  /// "F32 [2, 3]".
  [[nodiscard]] std::string text() const;
};

using Metadata = std::map<std::string, std::string>;

/// A tensor's data does not match the checksum in the header.
class ChecksumError : public FileError {
 public:
  using FileError::FileError;
};

/// Larger headers are refused, as other implementations do.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

struct Header {
  std::vector<Entry> entries;  ///< In order of their data.
  Metadata metadata;           ///< Without the checksums.

  /// Reads and checks the header of a file of `file_size` bytes; `beginning` holds at least the header. Throws
  /// FileError that lists everything wrong with it, so a returned header is valid.
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
  /// Null when there is no tensor of that name.
  [[nodiscard]] const Entry* find(const std::string& name) const;

  /// Reads `size` bytes of an entry from `offset` on. Throws InvalidArgument beyond the entry's end, FileError when the
  /// bytes cannot be read, and ChecksumError (with the data in `into`) when a whole entry is read and does not match
  /// its checksum. Reading a part of an entry checks nothing; use `check`.
  void read(const Entry& entry, std::uint64_t offset, void* into, std::size_t size) const;
  /// Reads the whole entry and compares its checksum, if it has one. Throws ChecksumError, FileError.
  void check(const Entry& entry) const;

 private:
  void require_sum(const Entry& entry, const Checksum& sum) const;

  std::shared_ptr<const ByteSource> file_;
  Header header_;
  std::unordered_map<std::string_view, const Entry*> by_name_;
};

/// Writes a file, which appears complete on `commit` or not at all.
class Writer {
 public:
  /// Uses the name, dtype and shape of each entry. Throws InvalidArgument for duplicate names and for metadata that
  /// uses the reserved names of checksums; FileError when the file cannot be created.
  Writer(const std::string& path, std::vector<Entry> entries, const Metadata& metadata = {});

  /// The entries in the order in which they must be written: wider dtypes first, so that all are aligned in the file.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  /// Appends bytes to the entry. Entries are written in the order of `entries()`, each in any number of pieces. Throws
  /// InvalidArgument for an entry out of order or too many bytes, FileError when writing fails.
  void write(const Entry& entry, const void* bytes, std::size_t size);
  /// Completes the file and moves it into place. Throws InvalidArgument when data is missing, or FileError; an existing
  /// file is then unchanged.
  void commit();

 private:
  void finish_entry();

  WholeFile file_;
  std::vector<Entry> entries_;
  Metadata metadata_;
  std::size_t at_ = 0;         // index of the entry being written
  std::uint64_t written_ = 0;  // bytes of this entry written so far
  Checksum sum_;               // checksum of these bytes
};

}  // namespace stagecraft::safetensors
