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

/// Files of tensors by name, in the format of the Python package of that name:
///
///     8 bytes       the length of the header, little-endian
///     header        JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
///                   "__metadata__": {"key": "text", ...}}, padded with spaces to a multiple of 8
///     data          offsets count from its beginning; the tensors fill it without gap or overlap
///
/// Files written here have checksums (XXH64, 16 hexadecimal digits) in their metadata: "stagecraft.xxh64.<tensor>" of a
/// tensor's data, and "stagecraft.xxh64" of everything else that the header says. Files without them are read as well.
namespace stagecraft::safetensors {

/// Bits of one number by dtype, as the format calls it ("F32", "BF16", "BOOL", ...); 0 for what is none.
int bits_of(std::string_view dtype);

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< In the file.
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> checksum = std::nullopt;  ///< Of its data, where the file says it.

  /// "F32 [2, 3]".
  [[nodiscard]] std::string text() const;
};

using Metadata = std::map<std::string, std::string>;

/// A tensor's data does not have the checksum that the header says.
class ChecksumError : public FileError {
 public:
  using FileError::FileError;
};

/// Headers above this are refused, as elsewhere.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

struct Header {
  std::vector<Entry> entries;  ///< In the order of their data.
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
  /// Null when there is none of that name.
  [[nodiscard]] const Entry* find(const std::string& name) const;

  /// `size` bytes of an entry from `offset` on, and nothing else. Throws InvalidArgument beyond its end, FileError when
  /// they cannot be read; ChecksumError when a whole entry is read and is not what was written, with what is there in
  /// `into`. A part of an entry has no checksum of its own: `check` looks at the whole.
  void read(const Entry& entry, std::uint64_t offset, void* into, std::size_t size) const;
  /// Reads all of an entry that has a checksum, and keeps nothing. Throws ChecksumError, FileError.
  void check(const Entry& entry) const;

 private:
  void require_sum(const Entry& entry, const Checksum& sum) const;

  std::shared_ptr<const ByteSource> file_;
  Header header_;
  std::unordered_map<std::string_view, const Entry*> by_name_;
};

/// A file being written: it appears whole when it is committed, or not at all.
class Writer {
 public:
  /// Uses the name, dtype and shape of each entry. Throws InvalidArgument for duplicate names and for metadata that
  /// uses the reserved names of checksums; FileError when the file cannot be created.
  Writer(const std::string& path, std::vector<Entry> entries, const Metadata& metadata = {});

  /// In the order in which they must be written: wider numbers first, so that all are aligned in the file.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  /// The next bytes of the entry; entries come one after the other, each in any pieces. Throws InvalidArgument when it
  /// is not its turn or they are too many, FileError when they cannot be written.
  void write(const Entry& entry, const void* bytes, std::size_t size);
  /// Throws InvalidArgument when data is missing, FileError; then the file that was there is as it was.
  void commit();

 private:
  void finish_entry();

  WholeFile file_;
  std::vector<Entry> entries_;
  Metadata metadata_;
  std::size_t at_ = 0;         // the entry whose turn it is
  std::uint64_t written_ = 0;  // of it
  Checksum sum_;               // of that
};

}  // namespace stagecraft::safetensors
