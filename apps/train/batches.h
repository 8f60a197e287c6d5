#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data.h"
#include "stagecraft/stage/value.h"

namespace stagecraft::train {

/// Batches of data as a pipeline takes them.
class Batches {
 public:
  /// `data` was opened for what is wanted.
  Batches(const Pipe& pipe, const WantedData& wanted, std::shared_ptr<const Data> data, at::Device device);

  /// The model's inputs by name, on the device. Throws FileError for a token that the model has no embedding for.
  [[nodiscard]] ValueDict inputs(const Rows& rows) const;
  [[nodiscard]] const Data& data() const { return *data_; }
  [[nodiscard]] at::Device device() const { return device_; }

 private:
  [[nodiscard]] at::Tensor read(const ModelLeaf& leaf, const Rows& rows) const;
  void check_tokens(const ModelLeaf& leaf, const at::Tensor& tokens, const Rows& rows) const;

  std::shared_ptr<const Data> data_;
  at::Device device_;
  std::vector<ModelInput> inputs_;
  std::map<std::string, std::int64_t> vocabularies_;  // of leaves that are looked up in an embedding
};

}  // namespace stagecraft::train
