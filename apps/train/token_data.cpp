#include <ATen/ops/empty.h>

#include "data_kinds.h"
#include "stagecraft/core/error.h"
#include "stagecraft/file/token_file.h"

namespace stagecraft::train {
namespace {

/// Row r is the tokens from r * length on. Rows do not overlap, so every token but the first is a target once.
class TokenData : public Data {
 public:
  TokenData(const std::string& path, TokenType type) : Data(path), file_(path, type) {}

  void set_form(std::int64_t length, at::ScalarType type) {
    length_ = length;
    type_ = type;
  }

  [[nodiscard]] std::int64_t tokens() const { return static_cast<std::int64_t>(file_.size()); }
  [[nodiscard]] std::int64_t rows() const override { return (tokens() - 1) / length_; }
  [[nodiscard]] std::int64_t tokens_per_row() const override { return length_; }
  [[nodiscard]] at::Tensor input(const std::string& /*name*/, const Rows& which,
                                 std::int64_t /*along*/) const override {
    return windows(which, 0).to(type_);
  }
  [[nodiscard]] at::Tensor targets(const std::string& /*name*/, const Rows& which,
                                   std::int64_t /*along*/) const override {
    return windows(which, 1);
  }
  [[nodiscard]] TensorSpec spec_of_targets(const std::string& /*name*/) const override {
    return {{rows(), length_}, at::kLong};
  }
  [[nodiscard]] std::optional<std::int64_t> other_rows(const std::string& /*name*/,
                                                       std::int64_t /*along*/) const override {
    return std::nullopt;
  }
  [[nodiscard]] std::string place_of(const std::string& /*name*/, std::int64_t row, std::int64_t token) const override {
    return "at " + std::to_string(row * length_ + token);
  }
  [[nodiscard]] at::Tensor whole(const std::string& name) const override {
    throw InternalError("tokens are cut by rows, but all of '" + name + "' was asked for");
  }
  [[nodiscard]] std::string fingerprint() const override {
    return sampled_checksum(file_.file()) + ", rows of " + std::to_string(length_);
  }

 private:
  [[nodiscard]] at::Tensor windows(const Rows& which, std::int64_t moved_by) const {
    at::Tensor tensor = at::empty({static_cast<std::int64_t>(which.size()), length_}, at::kLong);
    auto* into = tensor.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t row : which) {
      file_.read(static_cast<std::uint64_t>(row * length_ + moved_by), static_cast<std::size_t>(length_), into);
      into += length_;
    }
    return tensor;
  }

  TokenFile file_;
  std::int64_t length_ = 0;
  at::ScalarType type_ = at::kLong;
};

TokenType token_type_of(const std::string& word) {
  if (word == "uint16") return TokenType::kUint16;
  return word == "uint32" ? TokenType::kUint32 : TokenType::kAuto;
}

}  // namespace

std::unique_ptr<Data> open_tokens(const DataFile& file, const Options& options, const WantedData& wanted,
                                  Faults& faults) {
  auto data = std::make_unique<TokenData>(file.path, token_type_of(options.token_type));
  if (wanted.by_row.size() != 1 || !wanted.whole.empty()) {
    faults.add("the model takes " + std::to_string(wanted.by_row.size() + wanted.whole.size()) + " inputs (" +
               wanted.names() + "), and tokens fill one: give a .safetensors file with all of them");
    return nullptr;
  }
  if (wanted.targets.size() > 1) {
    faults.add("the loss takes " + std::to_string(wanted.targets.size()) +
               " kinds of targets, and tokens have one, the tokens that follow: give a .safetensors file");
    return nullptr;
  }
  const TensorSpec& takes = *wanted.by_row.front().tensor;
  if (takes.sizes.size() != 2 || (takes.dtype != at::kLong && takes.dtype != at::kInt)) {
    faults.add(
        "the model takes " + takes.text() +
        ", but tokens make rows of whole numbers, Long [rows, length]: give a .safetensors file, or .npy files with " +
        file.targets_option);
    return nullptr;
  }
  const bool any_length = takes.sizes[1] == TensorSpec::kAny;
  const std::int64_t length = any_length ? options.length : takes.sizes[1];
  if (length < 1) {
    faults.add("the model takes rows of any length: give the number of tokens per row with --length");
    return nullptr;
  }
  if (options.length > 0 && options.length != length) {
    faults.add("--length is " + std::to_string(options.length) + ", but the model takes rows of " +
               std::to_string(length) + " tokens: leave it out");
  }
  if (data->tokens() <= length) {
    faults.add("it has " + std::to_string(data->tokens()) + " tokens, but one row and its targets take " +
               std::to_string(length + 1) + ": give more data");
  }
  data->set_form(length, takes.dtype);
  return data;
}

}  // namespace stagecraft::train
