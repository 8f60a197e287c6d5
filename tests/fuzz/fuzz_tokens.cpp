// Any bytes: a file of tokens or an array of numpy is refused with a FileError, or what it holds lies inside the file.
//
// Input: one byte that chooses the kind of file, and the file.

#include <cstdint>
#include <string>

#include "refusing.h"
#include "stagecraft/file/npy.h"
#include "stagecraft/file/safetensors.h"
#include "stagecraft/file/token_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stagecraft;
  if (size < 1) return 0;
  const std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 3) {
    accepts([&] {
      const npy::Header header = npy::Header::parse(file, file.size(), "file");
      require(header.begin + header.bytes == file.size());
      auto bits = static_cast<std::uint64_t>(safetensors::bits_of(header.dtype));
      for (const std::int64_t length : header.shape) bits *= static_cast<std::uint64_t>(length);
      require(bits == 8 * header.bytes);
    });
    return 0;
  }
  accepts([&] {
    const auto type = static_cast<TokenType>(data[0] % 4);
    const TokenLayout layout = TokenLayout::of_bin(file, file.size(), type, "file");
    require(layout.count > 0);
    require(layout.begin + layout.count * layout.bytes_each() == file.size());
  });
  return 0;
}
