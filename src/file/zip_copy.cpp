#include "stagecraft/file/zip_copy.h"

#include <algorithm>
#include <array>
#include <vector>

#include "crc32.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

constexpr std::size_t kBlock = std::size_t{8} << 20;

// Places of checksums in the format's structures.
constexpr std::uint64_t kFlagsInHeader = 6;
constexpr std::uint64_t kSumInHeader = 14;
constexpr std::uint64_t kSumInEntry = 16;
constexpr std::uint32_t kSumFollows = 1U << 3;  // behind the data instead of in the header
constexpr std::uint32_t kTrailer = 0x08074b50;  // may stand before a checksum behind the data

/// Calls `visit(offset, size)` for the blocks of a range.
template <typename Visit>
void in_blocks(std::uint64_t size, const Visit& visit) {
  for (std::uint64_t at = 0; at < size; at += kBlock)
    visit(at, static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, size - at)));
}

}  // namespace

ZipCopy::ZipCopy(const ZipArchive& source, const std::string& path) : source_(source), file_(path) {
  std::vector<char> block(static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, source.source_->size())));
  in_blocks(source.source_->size(), [&](std::uint64_t at, std::size_t size) {
    source.source_->read(at, block.data(), size);
    file_.write(block.data(), size);
  });
}

const ZipArchive::Record& ZipCopy::find(const std::string& record, std::uint64_t offset, std::size_t size) const {
  const ZipArchive::Record& place = source_.find(record);
  if (offset > place.size || size > place.size - offset) {
    throw FileError(file_.path(), "record '" + record + "' has " + std::to_string(place.size) + " bytes, too few for " +
                                      std::to_string(size) + " at " + std::to_string(offset));
  }
  return place;
}

void ZipCopy::write(const std::string& record, std::uint64_t offset, const void* bytes, std::size_t size) {
  file_.write_at(find(record, offset, size).begin + offset, bytes, size);
  changed_.insert(record);
}

void ZipCopy::read(const std::string& record, std::uint64_t offset, void* into, std::size_t size) const {
  open_file(file_.hidden_path())->read(find(record, offset, size).begin + offset, into, size);
}

std::uint32_t ZipCopy::number_at(std::uint64_t offset) const {
  std::array<unsigned char, 4> bytes{};
  open_file(file_.hidden_path())->read(offset, bytes.data(), bytes.size());
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) number |= std::uint32_t{bytes[i]} << (8 * i);
  return number;
}

void ZipCopy::write_checksum(const ZipArchive::Record& place) {
  const auto file = open_file(file_.hidden_path());
  std::vector<char> block(static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, place.size)));
  std::uint32_t sum = 0;
  in_blocks(place.size, [&](std::uint64_t at, std::size_t size) {
    file->read(place.begin + at, block.data(), size);
    sum = crc32(block.data(), size, sum);
  });
  std::array<unsigned char, 4> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(sum >> (8 * i));
  file_.write_at(place.entry + kSumInEntry, bytes.data(), bytes.size());
  std::uint64_t own = place.header + kSumInHeader;
  if ((number_at(place.header + kFlagsInHeader) & kSumFollows) != 0) {
    const std::uint64_t behind = place.begin + place.size;
    own = number_at(behind) == kTrailer ? behind + 4 : behind;
  }
  file_.write_at(own, bytes.data(), bytes.size());
}

void ZipCopy::commit() {
  for (const std::string& record : changed_) write_checksum(source_.find(record));
  file_.commit();
}

}  // namespace stagecraft
