#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/file/bytes.h"

/// Uncompressed zip archives, the format of exported models.
namespace stagecraft {

/// Reads byte ranges of uncompressed records. Supports archives over 4 GiB (zip64).
class ZipArchive {
 public:
  /// Reads the directory. Throws FileError for a file that is not a complete zip archive, and for a record that is
  /// compressed, encrypted, duplicated or not inside the file.
  explicit ZipArchive(std::shared_ptr<const ByteSource> source);

  [[nodiscard]] const std::string& name() const { return source_->name(); }
  /// Names of all records, ascending.
  [[nodiscard]] std::vector<std::string> records() const;
  [[nodiscard]] bool contains(std::string_view record) const { return records_.contains(record); }
  /// Size in bytes. Throws FileError for an unknown record.
  [[nodiscard]] std::uint64_t size(std::string_view record) const { return find(record).size; }
  /// Throws FileError for an unknown record, or beyond the record's end.
  void read(std::string_view record, std::uint64_t offset, void* into, std::size_t size) const;
  /// The whole record. Throws FileError for an unknown record, or one larger than `limit` bytes.
  [[nodiscard]] std::string read_text(std::string_view record, std::uint64_t limit = std::uint64_t{1} << 30) const;

 private:
  friend class ZipCopy;

  struct Record {
    std::uint64_t begin;
    std::uint64_t size;
    std::uint64_t header;  // where its own header begins
    std::uint64_t entry;   // where its entry in the directory begins
  };
  class Directory;

  [[nodiscard]] const Record& find(std::string_view record) const;

  std::shared_ptr<const ByteSource> source_;
  std::map<std::string, Record, std::less<>> records_;
};

}  // namespace stagecraft
