// Checksums in a file's metadata. The checksum of the header covers its meaning, not its text, so it survives a program
// that copies a file and writes the names in another order.

#include <algorithm>
#include <charconv>

#include "safetensors_header.h"
#include "stagecraft/core/error.h"

namespace stagecraft::safetensors {
namespace {

constexpr std::string_view kHeaderSum = "stagecraft.xxh64";
constexpr std::string_view kTensorSum = "stagecraft.xxh64.";

void add_text(Checksum& sum, const std::string& text) { sum.add(text.c_str(), text.size() + 1); }

/// Hashes name, type, shape and checksum of every tensor, and all metadata except the checksums themselves.
std::uint64_t sum_of_header(const std::vector<Entry>& entries, const Metadata& metadata) {
  std::vector<const Entry*> by_name;
  for (const Entry& entry : entries) by_name.push_back(&entry);
  std::sort(by_name.begin(), by_name.end(), [](const Entry* a, const Entry* b) { return a->name < b->name; });
  Checksum sum;
  for (const Entry* entry : by_name) {
    add_text(sum, entry->name);
    add_text(sum, entry->text());
    add_text(sum, hex_text(entry->checksum.value_or(0)));
  }
  for (const auto& [key, value] : metadata) {
    add_text(sum, key);
    add_text(sum, value);
  }
  return sum.value();
}

/// The inverse of `hex_text`; none for any other text.
std::optional<std::uint64_t> number_of(const std::string& text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value, 16);
  if (error != std::errc() || last != end || hex_text(value) != text) return std::nullopt;
  return value;
}

}  // namespace

void take_checksums(Header& header, Faults& faults) {
  std::map<std::string, std::string> sums;  // by tensor
  std::optional<std::string> of_header;
  for (const auto& [key, value] : header.metadata) {
    if (key == kHeaderSum) of_header = value;
    if (key.starts_with(kTensorSum)) sums.emplace(key.substr(kTensorSum.size()), value);
  }
  std::erase_if(header.metadata,
                [](const auto& item) { return item.first == kHeaderSum || item.first.starts_with(kTensorSum); });
  if (sums.empty() && !of_header) return;
  const std::string remedy = " (a program that changes a file leaves out its metadata 'stagecraft.xxh64...')";
  for (Entry& entry : header.entries) {
    const auto found = sums.find(entry.name);
    if (found == sums.end()) {
      faults.add("tensor " + in_quotes(entry.name) + " has no checksum, but the file has some" + remedy);
      continue;
    }
    entry.checksum = number_of(found->second);
    if (!entry.checksum) {
      faults.add("tensor " + in_quotes(entry.name) + " has the checksum " + in_quotes(found->second) +
                 ", which is not 16 hexadecimal digits");
    }
    sums.erase(found);
  }
  for (const auto& [name, text] : sums) {
    faults.add("there is a checksum of " + in_quotes(name) + ", but no such tensor" + remedy);
  }
  if (!faults.empty()) return;
  const std::string expected = hex_text(sum_of_header(header.entries, header.metadata));
  if (of_header == expected) return;
  faults.add("the header has the checksum " + expected + ", but it says " +
             (of_header ? in_quotes(*of_header) : "none") + ": it is damaged" + remedy);
}

void add_checksums(const std::vector<Entry>& entries, Metadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (key == kHeaderSum || key.starts_with(kTensorSum)) {
      throw InvalidArgument("metadata " + in_quotes(key) + " has the name of a checksum: rename it");
    }
  }
  const std::uint64_t of_header = sum_of_header(entries, metadata);
  for (const Entry& entry : entries) {
    metadata.emplace(std::string(kTensorSum) + entry.name, hex_text(entry.checksum.value_or(0)));
  }
  metadata.emplace(kHeaderSum, hex_text(of_header));
}

}  // namespace stagecraft::safetensors
