#include "data.h"

#include <algorithm>

#include "data_kinds.h"
#include "stagecraft/core/error.h"
#include "stagecraft/file/checksum.h"
#include "stagecraft/graph/ports.h"

namespace stagecraft::train {

namespace {

/// Tokens are rows of a text: a model that takes any length, but a fixed number of rows, has its rows first all the
/// same.
bool has_dynamic_length(const WantedData& wanted) {
  return wanted.by_row.size() == 1 && wanted.by_row.front().rows == 1 &&
         wanted.by_row.front().tensor->sizes.size() == 2;
}

std::vector<std::string> targets_of(const Options& options) {
  std::vector<std::string> names;
  for (const LossTerm& term : options.terms) {
    if (term.criterion == Criterion::kOutput && term.targets.empty()) continue;
    const std::string& name = term.targets.empty() ? options.target : term.targets;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace

WantedData WantedData::of(const Pipe& pipe, const Options& options, Faults& faults) {
  WantedData wanted;
  wanted.targets = targets_of(options);
  wanted.symbol = graph::batch_symbol(pipe.program());
  wanted.static_rows = pipe.static_rows();
  for (ModelInput& input : pipe.inputs()) {
    for (ModelLeaf& leaf : input.leaves) {
      if (leaf.fixed) continue;
      if (input.name.empty()) {
        faults.add("the input '" + leaf.name +
                   "' can only be given by position, so train cannot fill it: use the library");
      } else if (!leaf.tensor) {
        faults.add("the input '" + leaf.name +
                   "' is a number, so train cannot fill it: export it as a constant or as a "
                   "tensor, or use the library");
      } else {
        (leaf.rows ? wanted.by_row : wanted.whole).push_back(std::move(leaf));
      }
    }
  }
  if (are_tokens(options.data.front(), !options.targets.empty()) && has_dynamic_length(wanted)) {
    ModelLeaf& tokens = wanted.by_row.front();
    tokens.rows = 0;
    wanted.symbol.clear();
    if (tokens.tensor->sizes[0] != TensorSpec::kAny) wanted.static_rows = tokens.tensor->sizes[0];
  }
  return wanted;
}

std::map<std::string, Split> WantedData::splits(const Pipe& pipe) const {
  std::map<std::string, Split> all;
  for (const ModelInput& input : pipe.inputs()) {
    if (!input.name.empty()) all.emplace(input.name, input.split);
  }
  for (const ModelLeaf& leaf : by_row) {
    const auto flat = all.find(leaf.name);  // as `of` has decided
    if (flat != all.end() && flat->second.dimensions.empty()) flat->second = Split::along(*leaf.rows);
  }
  return all;
}

std::string WantedData::names() const {
  std::string names;
  for (const auto* const leaves : {&by_row, &whole}) {
    for (const ModelLeaf& leaf : *leaves) names += (names.empty() ? "" : ", ") + leaf.name;
  }
  return names;
}

bool are_tokens(const std::string& path, bool has_targets) {
  return path.ends_with(".bin") || (path.ends_with(".npy") && !has_targets);
}

namespace {

std::unique_ptr<Data> open_one(const DataFile& file, const Options& options, const WantedData& wanted) {
  const bool is_tokens = are_tokens(file.path, !file.targets.empty());
  Faults faults;
  if (!file.path.ends_with(".npy") && !file.targets.empty()) {
    faults.add(file.targets_option + " is for inputs in a .npy file, and " +
               (is_tokens ? "the targets of tokens are the tokens that follow" : "this file holds the targets too") +
               ": leave it out");
  }
  if (!is_tokens && options.length > 0)
    faults.add("--length is for tokens, and these are rows of tensors: leave it out");
  std::unique_ptr<Data> data =
      is_tokens ? open_tokens(file, options, wanted, faults) : open_tensors(file, wanted, faults);
  if (!faults.empty()) throw FileError(file.path, faults.text());
  return data;
}

}  // namespace

std::shared_ptr<const Data> open_data(const DataFiles& files, const Options& options, const WantedData& wanted) {
  if (!files.targets.empty() && files.targets.size() != files.paths.size()) {
    throw InvalidArgument("there are " + std::to_string(files.paths.size()) + " files of data, but " +
                          std::to_string(files.targets.size()) + " of " + files.targets_option +
                          ": give one for each, in the same order");
  }
  std::vector<std::unique_ptr<Data>> parts;
  for (std::size_t i = 0; i < files.paths.size(); ++i) {
    const std::string targets = files.targets.empty() ? "" : files.targets[i];
    parts.push_back(open_one({files.paths[i], targets, files.targets_option}, options, wanted));
  }
  if (parts.size() == 1) return std::move(parts.front());
  return join_data(std::move(parts), files.paths, wanted);
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
