#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "stagecraft/stage/stage.h"

/// Finding out what a stage returns without leaving a trace.
namespace stagecraft {

/// While it lives, tensors of a stage have other data: on the meta device (shapes and types, no data), or copies. Data,
/// gradients and places in autograd graphs are untouched, and back when it ends. Nobody else may use the stage
/// meanwhile.
class StandIns {
 public:
  static StandIns on_meta(const Stage& stage);
  static StandIns copies_of_buffers(const Stage& stage);
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
    at::Tensor data;  // what it was
  };
  std::vector<Replaced> replaced_;
};

/// The same tree with every tensor on the meta device.
Value on_meta(const Value& value);

/// What the stage returns for inputs that look like these, on the meta device. The stage runs there too; where it
/// cannot, because an operation needs data, it runs on zeros on `device`. Parameters, buffers and the modes of modules
/// stay as they are. Throws what the stage throws.
Value infer_output(const Stage& stage, const StageCall& call, at::Device device);

}  // namespace stagecraft
