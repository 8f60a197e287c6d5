#include "stagecraft/file/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "stagecraft/core/error.h"
#include "stagecraft/file/npy.h"

namespace stagecraft {
namespace {

using Element = TokenLayout::Element;

constexpr std::size_t kHeaderBytes = 1024;

/// One kind of header that llm.c writes.
struct TokenHeader {
  std::uint32_t magic;
  std::int32_t version;
  TokenType type;
};
constexpr std::array<TokenHeader, 2> kHeaders = {
    {{20240520, 1, TokenType::kUint16}, {20240801, 7, TokenType::kUint32}}};

const char* type_text(TokenType type) { return type == TokenType::kUint32 ? "uint32" : "uint16"; }

std::int32_t word_at(std::string_view bytes, std::size_t index) {
  std::int32_t word = 0;
  std::memcpy(&word, bytes.data() + 4 * index, 4);
  return word;
}

std::uint32_t swapped(std::uint32_t word) {
  return word >> 24 | (word >> 8 & 0xFF00U) | (word << 8 & 0xFF0000U) | word << 24;
}

/// A file of uint32 read as uint16 has the upper halves of its tokens, which are nearly always 0, at every odd place.
bool looks_like_uint32(std::string_view beginning) {
  constexpr std::size_t kEnough = 64;
  constexpr std::uint32_t kMostUpperHalf = 3;  // vocabularies below 2^18
  bool has_large = false;
  const std::size_t words = beginning.size() / 4;
  for (std::size_t i = 0; i < words; ++i) {
    const auto word = static_cast<std::uint32_t>(word_at(beginning, i));
    if (word >> 16 > kMostUpperHalf) return false;
    has_large |= (word & 0xFFFFU) > kMostUpperHalf;
  }
  return has_large && words >= kEnough;
}

/// The layout that the header announces. Throws FileError when the rest of the file does not fit it.
TokenLayout layout_behind(const TokenHeader& header, std::string_view beginning, std::uint64_t file_size,
                          const std::string& path) {
  const std::string magic = "its header has the magic number " + std::to_string(header.magic);
  if (file_size < kHeaderBytes) {
    throw FileError(path, magic + ", but the file ends after " + std::to_string(file_size) +
                              " bytes, in the header of 1024: fetch the file again");
  }
  if (word_at(beginning, 1) != header.version) {
    throw FileError(path, magic + " and version " + std::to_string(word_at(beginning, 1)) + ", and only version " +
                              std::to_string(header.version) + " is known: write it with a header of that version");
  }
  TokenLayout layout{header.type == TokenType::kUint32 ? Element::kUint32 : Element::kUint16, kHeaderBytes, 0};
  const std::int64_t announced = word_at(beginning, 2);
  const std::uint64_t present = file_size - kHeaderBytes;
  if (announced < 1 || static_cast<std::uint64_t>(announced) * layout.bytes_each() != present) {
    throw FileError(path, "its header says that there are " + std::to_string(announced) + " tokens of " +
                              type_text(header.type) + ", but " + std::to_string(present) +
                              " bytes follow: fetch the file again, or write a header with the right number");
  }
  layout.count = static_cast<std::uint64_t>(announced);
  return layout;
}

TokenLayout layout_of_npy(const npy::Header& header, const std::string& path) {
  constexpr std::array<std::pair<std::string_view, Element>, 7> kKnown = {{{"U8", Element::kUint8},
                                                                           {"I8", Element::kInt8},
                                                                           {"U16", Element::kUint16},
                                                                           {"I16", Element::kInt16},
                                                                           {"U32", Element::kUint32},
                                                                           {"I32", Element::kInt32},
                                                                           {"I64", Element::kInt64}}};
  const auto* const known =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const auto& type) { return type.first == header.dtype; });
  if (known == kKnown.end() || header.shape.size() != 1) {
    throw FileError(path, "it is " + header.text() +
                              ", but tokens are an array of one dimension of integers: save tokens.ravel().astype("
                              "'<u4')");
  }
  if (header.shape[0] == 0) throw FileError(path, "it has no tokens: give a file with some");
  return {known->second, header.begin, static_cast<std::uint64_t>(header.shape[0])};
}

template <typename Number>
void widen(const std::string& bytes, std::size_t count, std::int64_t* into) {
  for (std::size_t i = 0; i < count; ++i) {
    Number number;
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    into[i] = static_cast<std::int64_t>(number);
  }
}

}  // namespace

std::size_t TokenLayout::bytes_each() const {
  switch (element) {
    case Element::kUint8:
    case Element::kInt8:
      return 1;
    case Element::kUint16:
    case Element::kInt16:
      return 2;
    case Element::kUint32:
    case Element::kInt32:
      return 4;
    case Element::kInt64:
      return 8;
  }
  return 0;
}

TokenLayout TokenLayout::of_bin(std::string_view beginning, std::uint64_t file_size, TokenType type,
                                const std::string& path) {
  if (file_size == 0) throw FileError(path, "it is empty: give a file with tokens");
  const auto magic = beginning.size() < 4 ? 0 : static_cast<std::uint32_t>(word_at(beginning, 0));
  for (const TokenHeader& header : kHeaders) {
    if (magic == swapped(header.magic)) {
      throw FileError(path, "its header is big-endian: write it on a little-endian machine, or swap its bytes");
    }
    if (magic != header.magic) continue;
    try {
      const TokenLayout layout = layout_behind(header, beginning, file_size, path);
      if (type == TokenType::kAuto || type == header.type) return layout;
    } catch (const FileError&) {
      if (type == TokenType::kAuto) throw;
      break;  // a type was given, and what looks like a header does not fit: these are tokens
    }
    throw FileError(path, std::string("its header says that tokens are ") + type_text(header.type) + ", but " +
                              type_text(type) + " was asked for: leave out the type (--token-type)");
  }
  TokenLayout layout{type == TokenType::kUint32 ? Element::kUint32 : Element::kUint16, 0, 0};
  if (file_size % layout.bytes_each() != 0) {
    throw FileError(path, "it has " + std::to_string(file_size) + " bytes, which is no whole number of tokens of " +
                              type_text(type) +
                              ": fetch the file again, or give the type of its tokens (--token-type)");
  }
  if (type == TokenType::kAuto && file_size % 4 == 0 && looks_like_uint32(beginning)) {
    throw FileError(
        path,
        "it has no header, so its tokens would be uint16, but every second one is nearly 0, as if they were "
        "uint32: give their type (--token-type uint16 or uint32)");
  }
  layout.count = file_size / layout.bytes_each();
  return layout;
}

TokenFile::TokenFile(const std::string& path, TokenType type) : file_(map_file(path)) {
  if (path.ends_with(".npy")) {
    layout_ = layout_of_npy(npy::Reader(path).header(), path);
    return;
  }
  std::string beginning(std::min<std::uint64_t>(file_->size(), 4 * kHeaderBytes), '\0');
  file_->read(0, beginning.data(), beginning.size());
  layout_ = TokenLayout::of_bin(beginning, file_->size(), type, path);
}

void TokenFile::read(std::uint64_t first, std::size_t count, std::int64_t* into) const {
  const std::size_t each = layout_.bytes_each();
  if (first > layout_.count || count > layout_.count - first) {
    throw FileError(path(), "tokens " + std::to_string(first) + " to " + std::to_string(first + count) +
                                " are asked for, but there are only " + std::to_string(layout_.count));
  }
  std::string bytes(count * each, '\0');
  file_->read(layout_.begin + first * each, bytes.data(), bytes.size());
  switch (layout_.element) {
    case Element::kUint8:
      return widen<std::uint8_t>(bytes, count, into);
    case Element::kInt8:
      return widen<std::int8_t>(bytes, count, into);
    case Element::kUint16:
      return widen<std::uint16_t>(bytes, count, into);
    case Element::kInt16:
      return widen<std::int16_t>(bytes, count, into);
    case Element::kUint32:
      return widen<std::uint32_t>(bytes, count, into);
    case Element::kInt32:
      return widen<std::int32_t>(bytes, count, into);
    case Element::kInt64:
      return widen<std::int64_t>(bytes, count, into);
  }
}

}  // namespace stagecraft
