#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "stagecraft/file/bytes.h"

/// Text as numbers: one long list of tokens in a file.
namespace stagecraft {

enum class TokenType {
  kAuto,  ///< As the header says; uint16 without a header.
  kUint16,
  kUint32,
};

/// Where the tokens of a file are. Three kinds of file:
///
///     .bin without a header     uint16 or uint32 from the first byte on, as nanoGPT writes
///     .bin with a header        256 int32 (a magic number, a version, the number of tokens, zeros), as llm.c writes:
///                               magic 20240520, version 1: uint16; magic 20240801, version 7: uint32
///     .npy                      an array of one dimension of integers
struct TokenLayout {
  enum class Element { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kInt64 };

  Element element = Element::kUint16;
  std::uint64_t begin = 0;  ///< Where the first token is in the file.
  std::uint64_t count = 0;

  [[nodiscard]] std::size_t bytes_each() const;

  /// Of a .bin file of `file_size` bytes that begins with `beginning`: all of it, or at least 1024 bytes. Throws
  /// FileError when sizes, magic number and version do not fit, or when the tokens seem to be of the other type.
  static TokenLayout of_bin(std::string_view beginning, std::uint64_t file_size, TokenType type,
                            const std::string& path);
};

/// A file of tokens, mapped into memory. Several threads may read from it.
class TokenFile {
 public:
  /// A .npy file by its ending, any other as .bin. Throws FileError.
  explicit TokenFile(const std::string& path, TokenType type = TokenType::kAuto);

  [[nodiscard]] const std::string& path() const { return file_->name(); }
  [[nodiscard]] const ByteSource& file() const { return *file_; }
  /// Number of tokens, at least 1.
  [[nodiscard]] std::uint64_t size() const { return layout_.count; }
  /// Reads `count` tokens from `first` on. Throws FileError beyond the end.
  void read(std::uint64_t first, std::size_t count, std::int64_t* into) const;

 private:
  std::shared_ptr<const ByteSource> file_;
  TokenLayout layout_;
};

}  // namespace stagecraft
