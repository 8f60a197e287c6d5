#pragma once

#include <memory>
#include <string>

#include "stagecraft/model/pipe.h"

namespace stagecraft::train {

/// A loss function exported from Python: a program of output and target that returns one number.
class ExportedLoss {
 public:
  /// Throws FileError or InvalidArgument for a program that is no such function.
  ExportedLoss(const std::string& path, at::Device device);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Its two inputs.
  [[nodiscard]] const ModelInput& output() const { return inputs_.at(0); }
  [[nodiscard]] const ModelInput& target() const { return inputs_.at(1); }
  /// By leaf of the first input.
  [[nodiscard]] const std::vector<graph::TensorType>& types() const { return types_; }
  /// The rows that a microbatch must have; none if their number is dynamic.
  [[nodiscard]] std::optional<std::int64_t> static_rows() const { return static_rows_; }

  /// Output and target are first brought to the floating-point types that the function was exported for.
  [[nodiscard]] at::Tensor operator()(const Value& output, const at::Tensor& target) const;

 private:
  std::string path_;
  std::vector<ModelInput> inputs_;
  std::vector<graph::TensorType> types_;
  std::optional<std::int64_t> static_rows_;
  std::shared_ptr<Stage> stage_;
};

}  // namespace stagecraft::train
