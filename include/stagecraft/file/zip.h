#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/file/bytes.h"

/// Zip archives as model files use them.
namespace stagecraft {

/// Records that are stored as they are, not compressed, read by range. Archives over 4 GiB too.
class ZipArchive {
 public:
  /// Reads the directory. Throws FileError for what is not a whole zip archive, or has a record that is compressed,
  /// encrypted, twice in it, or not inside the file.
  explicit ZipArchive(std::shared_ptr<const ByteSource> source);

  [[nodiscard]] const std::string& name() const { return source_->name(); }
  /// Ascending.
  [[nodiscard]] std::vector<std::string> records() const;
  [[nodiscard]] bool contains(std::string_view record) const { return records_.contains(record); }
  /// These throw FileError for a record that is not there.
  [[nodiscard]] std::uint64_t size(std::string_view record) const { return find(record).size; }
  /// Throws FileError beyond the record's end.
  void read(std::string_view record, std::uint64_t offset, void* into, std::size_t size) const;
  /// The whole record. Throws FileError above the limit.
  [[nodiscard]] std::string read_text(std::string_view record, std::uint64_t limit = std::uint64_t{1} << 30) const;

 private:
  struct Record {
    std::uint64_t begin;
    std::uint64_t size;
  };
  class Directory;

  [[nodiscard]] const Record& find(std::string_view record) const;

  std::shared_ptr<const ByteSource> source_;
  std::map<std::string, Record, std::less<>> records_;
};

}  // namespace stagecraft
