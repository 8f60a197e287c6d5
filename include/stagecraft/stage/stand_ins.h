#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "stagecraft/stage/stage.h"

/// Finds out what a stage returns, without side effects.
namespace stagecraft {

/// While it lives, tensors of a stage have other data: on the meta device (shapes and types, no data), or copies. Their
/// data comes back on destruction; gradients and autograd graphs are untouched. Nobody else may use the stage
/// meanwhile.
class StandIns {
 public:
  static StandIns on_meta(const Stage& stage);
  static StandIns copies_of_buffers(const Stage& stage);
  /// The stage's buffers `which`, by position, have the data of `values`.
  static StandIns of_buffers(const Stage& stage, const std::vector<std::size_t>& which,
                             const std::vector<at::Tensor>& values);
  ~StandIns();
  StandIns(StandIns&& other) noexcept = default;
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;
  StandIns& operator=(StandIns&&) = delete;

 private:
  StandIns() = default;
  void replace(const at::Tensor& tensor, const at::Tensor& stand_in);

  struct Replaced {
    at::Tensor tensor;
    at::Tensor data;  // the original
  };
  std::vector<Replaced> replaced_;
};

/// The same tree with every tensor on the meta device.
Value on_meta(const Value& value);

/// The output of the stage for inputs of these shapes, on the meta device. The stage runs there too; if it cannot,
/// because an operation needs data, it runs on zeros on `device`. Parameters, buffers and the modes of modules stay as
/// they are. Throws what the stage throws.
Value infer_output(const Stage& stage, const StageCall& call, at::Device device);

}  // namespace stagecraft
