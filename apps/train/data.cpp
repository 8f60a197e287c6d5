#include "data.h"

#include "data_kinds.h"
#include "stagecraft/core/error.h"
#include "stagecraft/file/checksum.h"

namespace stagecraft::train {

WantedInputs WantedInputs::of(const Pipe& pipe, Faults& faults) {
  WantedInputs wanted;
  for (ModelInput& input : pipe.inputs()) {
    if (input.fixed) continue;
    if (!input.tensor || input.name.empty()) {
      faults.add("the input '" + input.name + "' is nested or has no name, so train cannot fill it: use the library");
    } else if (!input.split.dimension) {
      wanted.whole.push_back(std::move(input));
    } else if (*input.split.dimension != 0) {
      faults.add("the input '" + input.name + "' has its batch in dimension " + std::to_string(*input.split.dimension) +
                 ", but rows of data are along dimension 0: export a model that takes the batch first");
    } else {
      wanted.by_row.push_back(std::move(input));
    }
  }
  return wanted;
}

std::string WantedInputs::names() const {
  std::string names;
  for (const auto* const inputs : {&by_row, &whole}) {
    for (const ModelInput& input : *inputs) names += (names.empty() ? "" : ", ") + input.name;
  }
  return names;
}

std::unique_ptr<Data> open_data(const DataFiles& files, const Options& options, const Pipe& pipe) {
  const bool is_array = files.path.ends_with(".npy");
  const bool is_tokens = files.path.ends_with(".bin") || (is_array && files.targets.empty());
  Faults faults;
  if (!is_array && !files.targets.empty()) {
    faults.add(files.targets_option + " is for inputs in a .npy file, and " +
               (is_tokens ? "the targets of tokens are the tokens that follow" : "this file holds the targets too") +
               ": leave it out");
  }
  if (!is_tokens && options.length > 0)
    faults.add("--length is for tokens, and these are rows of tensors: leave it out");
  const WantedInputs wanted = WantedInputs::of(pipe, faults);
  std::unique_ptr<Data> data =
      is_tokens ? open_tokens(files, options, wanted, faults) : open_tensors(files, options, wanted, faults);
  if (!faults.empty()) throw FileError(files.path, faults.text());
  return data;
}

std::string sampled_checksum(const ByteSource& file) {
  constexpr std::uint64_t kBlocks = 64;
  constexpr std::uint64_t kBlockBytes = 4096;
  Checksum sum;
  std::string block(kBlockBytes, '\0');
  const auto add = [&](std::uint64_t begin, std::uint64_t bytes) {
    file.read(begin, block.data(), bytes);
    sum.add(block.data(), bytes);
  };
  const std::uint64_t size = file.size();
  if (size <= kBlocks * kBlockBytes) {
    for (std::uint64_t begin = 0; begin < size; begin += kBlockBytes) add(begin, std::min(kBlockBytes, size - begin));
  } else {
    for (std::uint64_t i = 0; i < kBlocks; ++i) add((size - kBlockBytes) / (kBlocks - 1) * i, kBlockBytes);
    add(size - kBlockBytes, kBlockBytes);
  }
  return std::to_string(size) + " bytes " + hex_text(sum.value());
}

}  // namespace stagecraft::train
