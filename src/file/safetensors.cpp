#include "stagecraft/file/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "safetensors_header.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/faults.h"

namespace stagecraft::safetensors {
namespace {

/// As much as the header takes, or as there is.
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
  file_->read(entry.begin + offset, into, size);
}

namespace {

/// Wider numbers first; padding of the header aligns the widest.
std::vector<Entry> in_file_order(std::vector<Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return bits_of(a.dtype) > bits_of(b.dtype); });
  return entries;
}

}  // namespace

Writer::Writer(const std::string& path, std::vector<Entry> entries, const Metadata& metadata)
    : file_(path), entries_(in_file_order(std::move(entries))) {
  const std::string header = written_header(entries_, metadata);
  file_.write(header.data(), header.size());
}

void Writer::write(const Entry& entry, const void* bytes, std::size_t size) {
  if (size == 0) return;
  while (at_ < entries_.size() && written_ == entries_[at_].bytes) {
    ++at_;
    written_ = 0;
  }
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
  written_ += size;
}

void Writer::commit() {
  for (std::uint64_t done = written_; at_ < entries_.size(); ++at_, done = 0) {
    if (done == entries_[at_].bytes) continue;
    throw InvalidArgument(fmt::format("{}: tensor {} is not written: {} of {} bytes are there", file_.path(),
                                      in_quotes(entries_[at_].name), done, entries_[at_].bytes));
  }
  file_.commit();
}

}  // namespace stagecraft::safetensors
