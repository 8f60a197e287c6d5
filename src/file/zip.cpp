#include "stagecraft/file/zip.h"

#include <algorithm>
#include <array>
#include <optional>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

// Signatures and fixed lengths of the format's structures.
constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
constexpr std::uint32_t kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50;
constexpr std::uint32_t kEnd64Locator = 0x07064b50;
constexpr std::uint64_t kLocalHeaderSize = 30;
constexpr std::uint64_t kDirectoryEntrySize = 46;
constexpr std::uint64_t kEndSize = 22;
constexpr std::uint64_t kEnd64Size = 56;
constexpr std::uint64_t kEnd64LocatorSize = 20;
constexpr std::uint64_t kLongestComment = 65535;
constexpr std::uint16_t kExtra64 = 1;
constexpr std::uint32_t kSeeExtra = 0xffffffff;

/// A piece of the file, with access to its little-endian numbers.
class Piece {
 public:
  Piece(const ByteSource& source, std::uint64_t offset, std::uint64_t size) : bytes_(size, '\0') {
    source.read(offset, bytes_.data(), bytes_.size());
  }

  [[nodiscard]] std::uint16_t u16(std::size_t at) const { return static_cast<std::uint16_t>(number(at, 2)); }
  [[nodiscard]] std::uint32_t u32(std::size_t at) const { return static_cast<std::uint32_t>(number(at, 4)); }
  [[nodiscard]] std::uint64_t u64(std::size_t at) const { return number(at, 8); }
  [[nodiscard]] std::string text(std::size_t at, std::size_t size) const { return bytes_.substr(at, size); }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }

 private:
  [[nodiscard]] std::uint64_t number(std::size_t at, std::size_t count) const {
    std::uint64_t result = 0;
    for (std::size_t i = 0; i < count; ++i) {
      result |= std::uint64_t{static_cast<unsigned char>(bytes_.at(at + i))} << (8 * i);
    }
    return result;
  }

  std::string bytes_;
};

}  // namespace

/// Reads the central directory at the end of the file.
class ZipArchive::Directory {
 public:
  explicit Directory(const ByteSource& source) : source_(source) { find_end(); }

  void list(std::map<std::string, Record, std::less<>>& records) const {
    const Piece piece(source_, begin_, size_);
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < count_; ++i) {
      if (piece.size() - at < kDirectoryEntrySize || piece.u32(at) != kDirectoryEntry)
        refuse("its directory is broken");
      const std::size_t name_size = piece.u16(at + 28);
      const std::size_t extra_size = piece.u16(at + 30);
      const std::size_t comment_size = piece.u16(at + 32);
      const std::size_t total = kDirectoryEntrySize + name_size + extra_size + comment_size;
      if (piece.size() - at < total) refuse("its directory is broken");
      const std::string name = piece.text(at + kDirectoryEntrySize, name_size);
      Record record = check(piece, at, name);
      record.entry = begin_ + at;
      if (!records.emplace(name, record).second) refuse("it has two records called '" + name + "'");
      at += total;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw FileError(source_.name(), "not a zip archive that can be read: " + why);
  }

  void find_end() {
    if (source_.size() < kEndSize) refuse("it has only " + std::to_string(source_.size()) + " bytes");
    const std::uint64_t tail_size = std::min(source_.size(), kEndSize + kLongestComment);
    const std::uint64_t tail_begin = source_.size() - tail_size;
    const Piece tail(source_, tail_begin, tail_size);
    std::optional<std::size_t> found;
    for (std::size_t at = tail_size - kEndSize + 1; at-- > 0 && !found;) {
      if (tail.u32(at) == kEnd && at + kEndSize + tail.u16(at + 20) == tail_size) found = at;
    }
    if (!found) refuse("its end is missing: it was cut off, or is something else");
    count_ = tail.u16(*found + 10);
    size_ = tail.u32(*found + 12);
    begin_ = tail.u32(*found + 16);
    std::uint64_t directory_limit = tail_begin + *found;
    if (directory_limit >= kEnd64LocatorSize) {
      const Piece locator(source_, directory_limit - kEnd64LocatorSize, kEnd64LocatorSize);
      if (locator.u32(0) == kEnd64Locator) directory_limit = take_end64(locator.u64(8), directory_limit);
    }
    if (begin_ > directory_limit || size_ > directory_limit - begin_) refuse("its directory is not inside the file");
    if (count_ > size_ / kDirectoryEntrySize)
      refuse("its directory is too small for " + std::to_string(count_) + " records");
  }

  std::uint64_t take_end64(std::uint64_t at, std::uint64_t limit) {
    if (at > limit || kEnd64Size > limit - at) refuse("its end is not inside the file");
    const Piece end(source_, at, kEnd64Size);
    if (end.u32(0) != kEnd64) refuse("its end is broken");
    count_ = end.u64(32);
    size_ = end.u64(40);
    begin_ = end.u64(48);
    return at;
  }

  [[nodiscard]] Record check(const Piece& piece, std::size_t at, const std::string& name) const {
    if ((piece.u16(at + 8) & 1U) != 0) refuse("record '" + name + "' is encrypted");
    if (piece.u16(at + 10) != 0) refuse("record '" + name + "' is compressed: save it without compression");
    std::uint64_t packed = piece.u32(at + 20);
    std::uint64_t size = piece.u32(at + 24);
    std::uint64_t header = piece.u32(at + 42);
    const std::size_t extra_begin = at + kDirectoryEntrySize + piece.u16(at + 28);
    const std::size_t extra_end = extra_begin + piece.u16(at + 30);
    for (std::size_t field = extra_begin; field + 4 <= extra_end;) {
      const std::size_t body = field + 4;
      const std::size_t body_end = body + piece.u16(field + 2);
      if (body_end > extra_end) refuse("record '" + name + "' has a broken entry");
      if (piece.u16(field) == kExtra64) {
        std::size_t next = body;
        for (std::uint64_t* wide : {&size, &packed, &header}) {
          if (*wide != kSeeExtra) continue;
          if (next + 8 > body_end) refuse("record '" + name + "' has a broken entry");
          *wide = piece.u64(next);
          next += 8;
        }
      }
      field = body_end;
    }
    if (packed != size) refuse("record '" + name + "' has two different sizes");
    if (header > begin_ || kLocalHeaderSize > begin_ - header) refuse("record '" + name + "' is not inside the file");
    const Piece local(source_, header, kLocalHeaderSize);
    if (local.u32(0) != kLocalHeader) refuse("record '" + name + "' does not begin where the directory says");
    const std::uint64_t data = header + kLocalHeaderSize + local.u16(26) + local.u16(28);
    if (data > begin_ || size > begin_ - data) {
      refuse("record '" + name + "' of " + std::to_string(size) + " bytes is not inside the file");
    }
    return {data, size, header, 0};
  }

  const ByteSource& source_;
  std::uint64_t begin_ = 0;
  std::uint64_t size_ = 0;
  std::uint64_t count_ = 0;
};

ZipArchive::ZipArchive(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {
  Directory(*source_).list(records_);
}

std::vector<std::string> ZipArchive::records() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) names.push_back(name);
  return names;
}

const ZipArchive::Record& ZipArchive::find(std::string_view record) const {
  const auto found = records_.find(record);
  if (found == records_.end()) throw FileError(name(), "there is no record '" + std::string(record) + "'");
  return found->second;
}

void ZipArchive::read(std::string_view record, std::uint64_t offset, void* into, std::size_t size) const {
  const Record& place = find(record);
  if (offset > place.size || size > place.size - offset) {
    throw FileError(name(), "record '" + std::string(record) + "' has " + std::to_string(place.size) +
                                " bytes, too few for " + std::to_string(size) + " at " + std::to_string(offset));
  }
  source_->read(place.begin + offset, into, size);
}

std::string ZipArchive::read_text(std::string_view record, std::uint64_t limit) const {
  const Record& place = find(record);
  if (place.size > limit) {
    throw FileError(name(), "record '" + std::string(record) + "' has " + std::to_string(place.size) +
                                " bytes, more than the " + std::to_string(limit) + " that such a text may have");
  }
  std::string text(place.size, '\0');
  source_->read(place.begin, text.data(), text.size());
  return text;
}

}  // namespace stagecraft
