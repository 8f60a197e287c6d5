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
  /// `data` was opened for this model from `path`, which is for errors.
  Batches(const Pipe& pipe, std::shared_ptr<const Data> data, std::string path, at::Device device);

  /// The model's inputs by name, on the device. Throws FileError for a token that the model has no embedding for.
  [[nodiscard]] ValueDict inputs(const Rows& rows) const;
  /// On the CPU.
  [[nodiscard]] at::Tensor targets(const Rows& rows) const { return data_->targets(rows); }
  [[nodiscard]] const Data& data() const { return *data_; }
  [[nodiscard]] at::Device device() const { return device_; }

 private:
  void check_tokens(const std::string& name, const at::Tensor& tokens, const Rows& rows) const;

  std::shared_ptr<const Data> data_;
  std::string path_;
  at::Device device_;
  std::vector<std::string> by_row_;
  std::vector<std::string> whole_;
  std::map<std::string, std::int64_t> vocabularies_;  // of inputs that are looked up in an embedding
};

}  // namespace stagecraft::train
