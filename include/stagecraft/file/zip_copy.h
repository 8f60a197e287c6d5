#pragma once

#include <set>
#include <string>

#include "stagecraft/file/whole_file.h"
#include "stagecraft/file/zip.h"

namespace stagecraft {

/// A copy of an archive in which bytes of records are replaced; their sizes stay. It appears complete or not at all.
class ZipCopy {
 public:
  /// Copies everything. The archive must outlive it. Throws FileError.
  ZipCopy(const ZipArchive& source, const std::string& path);

  /// Replaces bytes of a record. Throws FileError for an unknown record, or beyond its end.
  void write(const std::string& record, std::uint64_t offset, const void* bytes, std::size_t size);
  /// The bytes that the copy has now.
  void read(const std::string& record, std::uint64_t offset, void* into, std::size_t size) const;
  /// Writes the checksums of changed records, and moves the file into place. Throws FileError; an existing file is then
  /// unchanged.
  void commit();

 private:
  [[nodiscard]] const ZipArchive::Record& find(const std::string& record, std::uint64_t offset, std::size_t size) const;
  [[nodiscard]] std::uint32_t number_at(std::uint64_t offset) const;
  void write_checksum(const ZipArchive::Record& place);

  const ZipArchive& source_;
  WholeFile file_;
  std::set<std::string> changed_;
};

}  // namespace stagecraft
