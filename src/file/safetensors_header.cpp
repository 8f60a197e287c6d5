#include "safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "parse_json.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"

namespace stagecraft::safetensors {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::uint64_t kPrefix = 8;  // size of the length field in bytes
static_assert(std::endian::native == std::endian::little, "data is written as it lies in memory");

struct Dtype {
  std::string_view name;
  int bits;
};
constexpr std::array kDtypes = {Dtype{"F64", 64},    Dtype{"I64", 64},    Dtype{"U64", 64},    Dtype{"C64", 64},
                                Dtype{"F32", 32},    Dtype{"I32", 32},    Dtype{"U32", 32},    Dtype{"F16", 16},
                                Dtype{"BF16", 16},   Dtype{"I16", 16},    Dtype{"U16", 16},    Dtype{"I8", 8},
                                Dtype{"U8", 8},      Dtype{"BOOL", 8},    Dtype{"F8_E4M3", 8}, Dtype{"F8_E5M2", 8},
                                Dtype{"F8_E8M0", 8}, Dtype{"F6_E2M3", 6}, Dtype{"F6_E3M2", 6}, Dtype{"F4", 4}};

/// The header's description of one tensor; missing fields are empty.
struct Described {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

/// SAX parser of the header, so that unknown contents of a large header take no memory.
class HeaderEvents : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderEvents(Faults& faults) : faults_(faults) {}

  std::vector<Described> tensors;
  Metadata metadata;

  bool null() override { return value("null"); }
  bool boolean(bool /*flag*/) override { return value("true or false"); }
  bool number_integer(number_integer_t number) override { return value(std::to_string(number)); }
  bool number_float(number_float_t /*number*/, const string_t& text) override { return value(in_quotes(text)); }
  bool binary(binary_t& /*bytes*/) override { return value("bytes"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ != 3 || list_ == nullptr) return value(std::to_string(number));
    list_->push_back(number);
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      metadata[field_] = text;
    } else if (depth_ == 2 && field_ == "dtype") {
      tensors.back().dtype = text;
    } else {
      return value("a text");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ > 2) return true;
    if (!names_[depth_ - 1U].insert(name).second) {
      faults_.add((depth_ == 1 ? "" : where() + ": ") + in_quotes(name) + " is there twice");
    }
    if (depth_ == 2) {
      field_ = name;
      return true;
    }
    in_metadata_ = name == kMetadata;
    if (!in_metadata_) tensors.push_back({.name = name, .dtype = {}, .shape = {}, .offsets = {}});
    return true;
  }

  bool start_object(std::size_t /*size*/) override {
    if (depth_ >= 2) value("an object");
    ++depth_;
    if (depth_ == 2) names_[1].clear();
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    const bool of_tensor = depth_ == 2 && !in_metadata_;
    if (depth_ == 3) value("a list");
    list_ = nullptr;
    if (of_tensor && field_ == "shape") list_ = &tensors.back().shape.emplace();
    if (of_tensor && field_ == "data_offsets") list_ = &tensors.back().offsets.emplace();
    if (depth_ < 3 && list_ == nullptr) value("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    list_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last, const nlohmann::detail::exception& error) override {
    faults_.add(fmt::format("the header is not JSON at its byte {}, {}: {}", position, in_quotes(last),
                            in_quotes(json::reason_in(error.what()))));
    return false;
  }

 private:
  [[nodiscard]] std::string where() const {
    return in_metadata_      ? std::string(kMetadata)
           : tensors.empty() ? "the header"
                             : "tensor " + in_quotes(tensors.back().name);
  }

  /// Reports a value of the wrong type for its field. Accepts any value in unknown fields.
  bool value(const std::string& shown) {
    if (depth_ == 0) {
      faults_.add("the header is " + shown + ", not an object");
    } else if (depth_ == 1) {
      faults_.add(where() + " is " + shown + ", not an object");
    } else if (in_metadata_ && depth_ == 2) {
      faults_.add(fmt::format("{}: {} is {}, not a text", kMetadata, in_quotes(field_), shown));
    } else if (depth_ == 2 && field_ == "dtype") {
      faults_.add(where() + ": dtype is " + shown + ", not a text");
    } else if ((depth_ == 2 && (field_ == "shape" || field_ == "data_offsets")) || (depth_ == 3 && list_ != nullptr)) {
      faults_.add(where() + ": " + field_ + " holds " + shown + ", not a list of whole numbers from 0 on");
    }
    return true;
  }

  Faults& faults_;
  unsigned depth_ = 0;
  bool in_metadata_ = false;
  std::string field_;
  std::vector<std::uint64_t>* list_ = nullptr;
  std::array<std::set<std::string>, 2> names_;
};

/// The checked entry; none, with a fault, when a field is missing or invalid. `begin` counts from the start of the
/// data.
std::optional<Entry> checked(const Described& tensor, std::uint64_t data_size, Faults& faults) {
  const std::string where = "tensor " + in_quotes(tensor.name) + ": ";
  const auto missing = [&](const char* field) { faults.add(where + "it has no " + field); };
  if (!tensor.dtype) missing("dtype");
  if (!tensor.shape) missing("shape");
  if (!tensor.offsets) missing("data_offsets");
  if (!tensor.dtype || !tensor.shape || !tensor.offsets) return std::nullopt;

  const std::vector<std::uint64_t>& offsets = *tensor.offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    faults.add(fmt::format("{}data_offsets are [{}], not a beginning and an end", where, fmt::join(offsets, ", ")));
    return std::nullopt;
  }
  if (offsets[1] > data_size) {
    faults.add(fmt::format("{}data_offsets [{}, {}] reach beyond the data of {} bytes", where, offsets[0], offsets[1],
                           data_size));
    return std::nullopt;
  }
  if (bits_of(*tensor.dtype) == 0) {
    faults.add(where + "dtype " + in_quotes(*tensor.dtype) + " is not known");
    return std::nullopt;
  }
  Entry entry{.name = tensor.name, .dtype = *tensor.dtype, .shape = {}, .begin = offsets[0], .bytes = 0};
  bool fits = true;
  for (const std::uint64_t size : *tensor.shape) {
    fits &= size <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    entry.shape.push_back(static_cast<std::int64_t>(size));
  }
  const auto bytes = fits ? bytes_of(entry.dtype, entry.shape) : std::nullopt;
  if (!bytes || *bytes != offsets[1] - offsets[0]) {
    faults.add(fmt::format("{}{} [{}] takes {} bytes, but data_offsets [{}, {}] hold {}", where, entry.dtype,
                           fmt::join(*tensor.shape, ", "), bytes ? std::to_string(*bytes) : "uncountable", offsets[0],
                           offsets[1], offsets[1] - offsets[0]));
    return std::nullopt;
  }
  entry.bytes = *bytes;
  return entry;
}

/// Checks that the entries, sorted by offset, cover the data without gap or overlap.
void check_cover(const std::vector<Entry>& entries, std::uint64_t data_size, Faults& faults) {
  std::uint64_t end = 0;
  const Entry* last = nullptr;
  for (const Entry& entry : entries) {
    if (entry.begin < end) {
      faults.add(fmt::format("tensors {} and {} share bytes", in_quotes(last->name), in_quotes(entry.name)));
    } else if (entry.begin > end) {
      faults.add(fmt::format("{} bytes before tensor {} belong to none", entry.begin - end, in_quotes(entry.name)));
    }
    if (entry.begin + entry.bytes < end) continue;
    end = entry.begin + entry.bytes;
    last = &entry;
  }
  if (end < data_size) faults.add(fmt::format("{} bytes at the end belong to no tensor", data_size - end));
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw FileError(path, "not a sound safetensors file: " + why + ": write it, or fetch it, again");
}

}  // namespace

int bits_of(std::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

std::optional<std::uint64_t> bytes_of(std::string_view dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t bits = bits_of(dtype);
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(bits / 8);
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string Entry::text() const { return dtype + " " + shape_text(shape); }

Header Header::parse(std::string_view beginning, std::uint64_t file_size, const std::string& path) {
  std::uint64_t length = 0;
  if (file_size < kPrefix || beginning.size() < kPrefix) {
    refuse(path, fmt::format("it has {} bytes, and the length of its header alone takes {}", file_size, kPrefix));
  }
  std::memcpy(&length, beginning.data(), kPrefix);
  if (length > kMostHeaderBytes) {
    refuse(path, fmt::format("its header would have {} bytes, and may have {}", length, kMostHeaderBytes));
  }
  if (length > file_size - kPrefix || length > beginning.size() - kPrefix) {
    refuse(path, fmt::format("its header would have {} bytes, but the file ends {} after its length", length,
                             file_size - kPrefix));
  }
  const std::string_view text = beginning.substr(kPrefix, length);
  if (!text.starts_with('{')) refuse(path, "its header does not begin with {");
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {  // the parser would stop there
    refuse(path, fmt::format("the header is not JSON at its byte {}, which is 0", zero + 1));
  }

  Faults faults;
  HeaderEvents events(faults);
  Json::sax_parse(text, &events);
  if (!faults.empty()) refuse(path, faults.text());

  const std::uint64_t data_size = file_size - kPrefix - length;
  Header header;
  for (const Described& tensor : events.tensors) {
    if (auto entry = checked(tensor, data_size, faults)) header.entries.push_back(std::move(*entry));
  }
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  // An entry left out for a fault would be reported as a gap.
  if (faults.empty()) check_cover(header.entries, data_size, faults);
  if (!faults.empty()) refuse(path, faults.text());
  for (Entry& entry : header.entries) entry.begin += kPrefix + length;
  header.metadata = std::move(events.metadata);
  take_checksums(header, faults);
  if (!faults.empty()) refuse(path, faults.text());
  return header;
}

std::string written_header(std::vector<Entry>& entries, const Metadata& given) {
  Metadata metadata = given;
  add_checksums(entries, metadata);
  std::vector<std::string> parts;
  const auto in_json = [](const std::string& words) -> std::string {
    try {
      return Json(words).dump();
    } catch (const Json::exception&) {
      throw InvalidArgument(in_quotes(words) + " is not UTF-8 and cannot be in a safetensors file: rename it");
    }
  };
  std::uint64_t end = 0;
  std::set<std::string_view> names = {kMetadata};
  for (Entry& entry : entries) {
    if (!names.insert(entry.name).second) {
      throw InvalidArgument("a safetensors file cannot have two tensors " + in_quotes(entry.name) + ": rename one");
    }
    const auto bytes = bytes_of(entry.dtype, entry.shape);
    if (bits_of(entry.dtype) == 0 || !bytes) {
      throw InvalidArgument("tensor " + in_quotes(entry.name) + ": a safetensors file cannot have " + entry.text());
    }
    entry.bytes = *bytes;
    entry.begin = end;
    end += entry.bytes;
    parts.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", in_json(entry.name),
                                entry.dtype, fmt::join(entry.shape, ","), entry.begin, end));
  }
  std::vector<std::string> pairs;
  for (const auto& [key, value] : metadata) pairs.push_back(in_json(key) + ":" + in_json(value));
  std::string text = fmt::format("{{\"{}\":{{{}}}{}{}}}", kMetadata, fmt::join(pairs, ","), parts.empty() ? "" : ",",
                                 fmt::join(parts, ","));
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  if (length > kMostHeaderBytes) {
    throw InvalidArgument(fmt::format("{} tensors make a header of {} bytes, and it may have {}: write several files",
                                      entries.size(), length, kMostHeaderBytes));
  }
  for (Entry& entry : entries) entry.begin += kPrefix + length;
  std::string prefix(kPrefix, '\0');
  std::memcpy(prefix.data(), &length, kPrefix);
  return prefix + text;
}

}  // namespace stagecraft::safetensors
