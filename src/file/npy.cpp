#include "stagecraft/file/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>

#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/file/safetensors.h"

namespace stagecraft::npy {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kFixedBytes = 8;  // before the length of the header

/// numpy's names without the byte order.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kTypes = {{{"b1", "BOOL"},
                                                                                   {"u1", "U8"},
                                                                                   {"i1", "I8"},
                                                                                   {"u2", "U16"},
                                                                                   {"i2", "I16"},
                                                                                   {"u4", "U32"},
                                                                                   {"i4", "I32"},
                                                                                   {"u8", "U64"},
                                                                                   {"i8", "I64"},
                                                                                   {"f2", "F16"},
                                                                                   {"f4", "F32"},
                                                                                   {"f8", "F64"},
                                                                                   {"c8", "C64"}}};

/// Reads the dict of a header, which has three keys.
class Dict {
 public:
  Dict(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;

  void read() {
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    require('{');
    while (!takes('}')) {
      const std::string key = string();
      require(':');
      bool* const seen = key == "descr"           ? &has_descr
                         : key == "fortran_order" ? &has_order
                         : key == "shape"         ? &has_shape
                                                  : nullptr;
      if (seen == nullptr || *seen) refuse("it has a key " + in_quotes(key) + (seen == nullptr ? "" : " twice"));
      *seen = true;
      if (key == "descr") {
        read_descr();
      } else if (key == "shape") {
        read_shape();
      } else {
        fortran_order = flag();
      }
      if (!takes(',')) {
        require('}');
        break;
      }
    }
    skip();
    if (!rest_.empty()) refuse("there is something behind its dict");
    if (!has_descr || !has_order || !has_shape) refuse("it needs descr, fortran_order and shape");
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw FileError(path_, "its header is not one of numpy.save: " + why + ": save the array again");
  }
  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }
  bool takes(char letter) {
    skip();
    if (!rest_.starts_with(letter)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void require(char letter) {
    if (!takes(letter)) refuse(std::string("there is no ") + letter + " before " + in_quotes(rest_.substr(0, 20)));
  }
  std::string string() {
    skip();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    const std::size_t end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) refuse("there is no text at " + in_quotes(rest_.substr(0, 20)));
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }
  bool flag() {
    skip();
    for (const std::string_view word : {"True", "False"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return word == "True";
    }
    refuse("fortran_order is neither True nor False");
  }
  void read_descr() {
    skip();
    if (rest_.starts_with('[')) {
      throw FileError(path_, "its elements are records with fields: save one array of numbers per file");
    }
    descr = string();
  }
  void read_shape() {
    require('(');
    while (!takes(')')) {
      skip();
      std::int64_t size = -1;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc() || size < 0) refuse("its shape has no size at " + in_quotes(rest_.substr(0, 20)));
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      shape.push_back(size);
      if (!takes(',')) {
        require(')');
        break;
      }
    }
  }

  std::string_view rest_;
  const std::string& path_;
};

std::string dtype_of_descr(const std::string& descr, const std::string& path) {
  const char order = descr.empty() ? '\0' : descr.front();
  const std::string_view kind = std::string_view(descr).substr(descr.empty() ? 0 : 1);
  const auto* const known =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& type) { return type.first == kind; });
  if (known == kTypes.end() || std::string_view("<>|=").find(order) == std::string_view::npos) {
    throw FileError(path, "its elements are " + in_quotes(descr) +
                              ", which is not supported: save them as numbers, such as array.astype('<f4')");
  }
  if (order == '>' && !kind.ends_with('1')) {
    throw FileError(path, "its elements are " + in_quotes(descr) + ", which is big-endian: save array.astype('<" +
                              std::string(kind) + "')");
  }
  return std::string(known->second);
}

/// None if it does not fit into 64 bits.
std::optional<std::uint64_t> bytes_of_array(const std::vector<std::int64_t>& shape, std::uint64_t bytes_each) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t bytes = bytes_each;
  for (const std::int64_t size : shape) {
    if (bytes > std::numeric_limits<std::int64_t>::max() / static_cast<std::uint64_t>(size)) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(size);
  }
  return bytes;
}

/// The length of everything before the data; `beginning` holds at least the first 12 bytes, or the whole file.
std::uint64_t header_end(std::string_view beginning, std::uint64_t file_size, const std::string& path) {
  if (!beginning.starts_with(kMagic)) {
    throw FileError(path,
                    "it does not begin like a .npy file: give an array of numpy.save, or a file with the right ending");
  }
  const auto byte = [&](std::size_t i) { return static_cast<std::uint64_t>(static_cast<unsigned char>(beginning[i])); };
  const std::uint64_t major = beginning.size() > 6 ? byte(6) : 0;
  const std::size_t width = major == 1 ? 2 : 4;
  if (beginning.size() < kFixedBytes + width) {
    throw FileError(path, "it ends in its header, after " + std::to_string(file_size) + " bytes: fetch the file again");
  }
  if (major < 1 || major > 3) {
    throw FileError(path, "it has version " + std::to_string(major) + "." + std::to_string(byte(7)) +
                              " of the .npy format, and 1.0 to 3.0 are known: save the array again");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < width; ++i) length |= byte(kFixedBytes + i) << (8 * i);
  const std::uint64_t end = kFixedBytes + width + length;
  if (length > kMostHeaderBytes || end > file_size) {
    throw FileError(path, "its header would have " + std::to_string(length) + " bytes, but the file has only " +
                              std::to_string(file_size) + " and a header at most " + std::to_string(kMostHeaderBytes) +
                              ": fetch the file again");
  }
  return end;
}

}  // namespace

std::string Header::text() const { return safetensors::Entry{"", dtype, shape, 0, 0}.text(); }

Header Header::parse(std::string_view beginning, std::uint64_t file_size, const std::string& path) {
  Header header;
  header.begin = header_end(beginning, file_size, path);
  const std::size_t before = kFixedBytes + (beginning[6] == 1 ? 2 : 4);
  Dict dict(beginning.substr(before, header.begin - before), path);
  dict.read();
  header.dtype = dtype_of_descr(dict.descr, path);
  header.shape = dict.shape;
  if (dict.fortran_order && header.shape.size() > 1) {
    throw FileError(path, "its array is in Fortran order, column by column: save numpy.ascontiguousarray(array)");
  }
  const std::optional<std::uint64_t> bytes =
      bytes_of_array(header.shape, static_cast<std::uint64_t>(safetensors::bits_of(header.dtype)) / 8);
  const std::uint64_t present = file_size - header.begin;
  if (!bytes || *bytes > present) {
    throw FileError(path, header.text() + " takes " + (bytes ? std::to_string(*bytes) : "too many") +
                              " bytes, but the file holds only " + std::to_string(present) +
                              " of them: fetch the file again");
  }
  if (*bytes < present) {
    throw FileError(path, header.text() + " takes " + std::to_string(*bytes) + " bytes, but the file holds " +
                              std::to_string(present) + ": save one array per file");
  }
  header.bytes = present;
  return header;
}

Reader::Reader(const std::string& path) : file_(map_file(path)) {
  std::string beginning(std::min<std::uint64_t>(file_->size(), 12), '\0');
  file_->read(0, beginning.data(), beginning.size());
  const std::uint64_t end = header_end(beginning, file_->size(), path);
  beginning.resize(end);
  file_->read(0, beginning.data(), beginning.size());
  header_ = Header::parse(beginning, file_->size(), path);
}

void Reader::read(std::uint64_t offset, void* into, std::size_t size) const {
  file_->read(header_.begin + offset, into, size);
}

}  // namespace stagecraft::npy
