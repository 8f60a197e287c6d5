#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

struct ZipRecord {
  std::string name;
  std::string bytes;
  std::uint16_t method = 0;
  std::uint16_t flags = 0;
};

/// A zip archive with its records as they are. With `wide`, sizes and places are those of the 64-bit extension.
class ZipBytes {
 public:
  explicit ZipBytes(bool wide = false) : wide_(wide) {}

  ZipBytes& add(const ZipRecord& record) {
    const std::uint64_t header = out_.size();
    number(out_, 0x04034b50, 4);
    common(out_, record);
    number(out_, record.name.size(), 2);
    number(out_, 0, 2);
    out_ += record.name + record.bytes;

    number(directory_, 0x02014b50, 4);
    number(directory_, 45, 2);
    common(directory_, record);
    number(directory_, record.name.size(), 2);
    number(directory_, wide_ ? 28 : 0, 2);
    number(directory_, 0, 2 + 2 + 2 + 4);
    number(directory_, wide_ ? kSeeExtra : header, 4);
    directory_ += record.name;
    if (wide_) {
      number(directory_, 1, 2);
      number(directory_, 24, 2);
      for (const std::uint64_t value :
           {std::uint64_t{record.bytes.size()}, std::uint64_t{record.bytes.size()}, header}) {
        number(directory_, value, 8);
      }
    }
    ++count_;
    return *this;
  }

  [[nodiscard]] std::string finish(const std::string& comment = {}) const {
    std::string all = out_ + directory_;
    if (wide_) {
      const std::uint64_t end = all.size();
      number(all, 0x06064b50, 4);
      number(all, 44, 8);
      number(all, 45, 2 + 2);
      number(all, 0, 4 + 4);
      number(all, count_, 8);
      number(all, count_, 8);
      number(all, directory_.size(), 8);
      number(all, out_.size(), 8);
      number(all, 0x07064b50, 4);
      number(all, 0, 4);
      number(all, end, 8);
      number(all, 1, 4);
    }
    number(all, 0x06054b50, 4);
    number(all, 0, 2 + 2);
    number(all, wide_ ? 0xffff : count_, 2);
    number(all, wide_ ? 0xffff : count_, 2);
    number(all, wide_ ? kSeeExtra : directory_.size(), 4);
    number(all, wide_ ? kSeeExtra : out_.size(), 4);
    number(all, comment.size(), 2);
    return all + comment;
  }

 private:
  static constexpr std::uint64_t kSeeExtra = 0xffffffff;

  static void number(std::string& to, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to += static_cast<char>(i < 8 ? value >> (8 * i) & 0xff : 0);
  }

  /// What the local header and the directory have in common. Nobody checks time and checksum.
  void common(std::string& to, const ZipRecord& record) const {
    number(to, 45, 2);
    number(to, record.flags, 2);
    number(to, record.method, 2);
    number(to, 0, 2 + 2 + 4);
    for (int i = 0; i < 2; ++i) number(to, wide_ ? kSeeExtra : record.bytes.size(), 4);
  }

  bool wide_;
  std::uint64_t count_ = 0;
  std::string out_;
  std::string directory_;
};

}  // namespace stagecraft
