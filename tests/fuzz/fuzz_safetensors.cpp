// Any bytes: a safetensors header is refused with a FileError, or its tensors fill the data of the file exactly.
//
// Input: three bytes and the rest. If the first byte is even, the rest is a file. If it is odd, the rest is the JSON of
// a header, whose length is put before it, and the other two bytes are the size of the data.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "refusing.h"
#include "stagecraft/file/safetensors.h"

namespace {

using namespace stagecraft;

void check(const std::string& beginning, std::uint64_t file_size) {
  safetensors::Header header;
  try {
    header = safetensors::Header::parse(beginning, file_size, "file");
  } catch (const FileError& error) {
    require(std::string_view(error.what()).starts_with("file: "));
    return;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, beginning.data(), 8);
  std::uint64_t end = 8 + length;
  std::set<std::string> names;
  for (const safetensors::Entry& entry : header.entries) {
    require(entry.begin == end);
    require(names.insert(entry.name).second);
    auto bits = static_cast<std::uint64_t>(safetensors::bits_of(entry.dtype));
    for (const std::int64_t size : entry.shape) bits *= static_cast<std::uint64_t>(size);
    require(bits == entry.bytes * 8);
    end += entry.bytes;
  }
  require(end == file_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 3, size - 3);
  if (data[0] % 2 == 0) {
    check(text, text.size());
    return 0;
  }
  const std::uint64_t length = text.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  check(prefix + text, 8 + length + data[1] + 256U * data[2]);
  return 0;
}
