#include "stagecraft/file/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "safetensors_header.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"

namespace stagecraft::safetensors {
namespace {

/// Bytes that are read and then hashed while they are in the cache.
constexpr std::size_t kBlock = std::size_t{256} << 10U;

/// The length prefix and the header, or as much of it as the file has.
std::string beginning_of(const ByteSource& file) {
  std::uint64_t length = 0;
  if (file.size() < sizeof(length)) return {};
  file.read(0, &length, sizeof(length));
  const std::uint64_t wanted = length > kMostHeaderBytes ? 0 : std::min(length, file.size() - sizeof(length));
  std::string text(sizeof(length) + wanted, '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace

Reader::Reader(const std::string& path)
    : file_(open_file(path)), header_(Header::parse(beginning_of(*file_), file_->size(), path)) {
  for (const Entry& entry : header_.entries) by_name_.emplace(entry.name, &entry);
}

const Entry* Reader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void Reader::read(const Entry& entry, std::uint64_t offset, void* into, std::size_t size) const {
  if (offset > entry.bytes || size > entry.bytes - offset) {
    throw InvalidArgument(fmt::format("tensor {} has {} bytes, cannot read {} from byte {} on", in_quotes(entry.name),
                                      entry.bytes, size, offset));
  }
  if (!entry.checksum || size < entry.bytes) return file_->read(entry.begin + offset, into, size);
  Checksum sum;
  auto* next = static_cast<char*>(into);
  for (std::size_t done = 0; done < size; done += kBlock) {
    const std::size_t block = std::min(kBlock, size - done);
    file_->read(entry.begin + done, next + done, block);
    sum.add(next + done, block);
  }
  require_sum(entry, sum);
}

void Reader::check(const Entry& entry) const {
  if (!entry.checksum) return;
  Checksum sum;
  std::string block(std::min<std::uint64_t>(kBlock, entry.bytes), '\0');
  for (std::uint64_t done = 0; done < entry.bytes; done += block.size()) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), entry.bytes - done));
    file_->read(entry.begin + done, block.data(), size);
    sum.add(block.data(), size);
  }
  require_sum(entry, sum);
}

void Reader::require_sum(const Entry& entry, const Checksum& sum) const {
  if (sum.value() == *entry.checksum) return;
  throw ChecksumError(path(), fmt::format("tensor {} is damaged: its data has the checksum {}, but {} was written: "
                                          "fetch the file again, or take an older one",
                                          in_quotes(entry.name), hex_text(sum.value()), hex_text(*entry.checksum)));
}

namespace {

/// Wider dtypes first, so that all are aligned: the padding of the header aligns the widest.
std::vector<Entry> in_file_order(std::vector<Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return bits_of(a.dtype) > bits_of(b.dtype); });
  return entries;
}

}  // namespace

Writer::Writer(const std::string& path, std::vector<Entry> entries, const Metadata& metadata)
    : file_(path), entries_(in_file_order(std::move(entries))), metadata_(metadata) {
  const std::string header = written_header(entries_, metadata_);  // with placeholders for the checksums
  file_.write(header.data(), header.size());
}

void Writer::write(const Entry& entry, const void* bytes, std::size_t size) {
  if (size == 0) return;
  while (at_ < entries_.size() && written_ == entries_[at_].bytes) finish_entry();
  if (at_ == entries_.size() || entries_[at_].name != entry.name) {
    throw InvalidArgument(
        fmt::format("{}: it is not the turn of tensor {}, but {}", file_.path(), in_quotes(entry.name),
                    at_ == entries_.size() ? "everything is written" : in_quotes(entries_[at_].name)));
  }
  if (size > entries_[at_].bytes - written_) {
    throw InvalidArgument(fmt::format("{}: tensor {} has {} bytes, got {} more than that", file_.path(),
                                      in_quotes(entry.name), entries_[at_].bytes,
                                      size - (entries_[at_].bytes - written_)));
  }
  file_.write(bytes, size);
  sum_.add(bytes, size);
  written_ += size;
}

void Writer::finish_entry() {
  entries_[at_++].checksum = sum_.value();
  sum_ = Checksum();
  written_ = 0;
}

void Writer::commit() {
  while (at_ < entries_.size()) {
    if (written_ < entries_[at_].bytes) {
      throw InvalidArgument(fmt::format("{}: tensor {} is not written: {} of {} bytes are there", file_.path(),
                                        in_quotes(entries_[at_].name), written_, entries_[at_].bytes));
    }
    finish_entry();
  }
  const std::string header = written_header(entries_, metadata_);
  file_.write_at(0, header.data(), header.size());
  file_.commit();
}

}  // namespace stagecraft::safetensors
