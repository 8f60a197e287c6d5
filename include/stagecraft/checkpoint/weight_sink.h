#pragma once

#include <functional>
#include <memory>
#include <string>

#include "stagecraft/runtime/pipeline.h"

namespace stagecraft {

/// Where the weights of a pipeline go, one by one.
class WeightSink {
 public:
  WeightSink() = default;
  WeightSink(const WeightSink&) = delete;
  WeightSink& operator=(const WeightSink&) = delete;
  virtual ~WeightSink() = default;

  /// `tensor` is whole, contiguous, and in host memory.
  virtual void write(const std::string& name, const at::Tensor& tensor) = 0;
  /// Called after the last one.
  virtual void commit() = 0;
};

/// All ranks call it. Gives the parameters and buffers of the whole model, also those that checkpoints leave out, to
/// what `make` returns; only the first rank of replica 0 calls that. `what` is for errors. Throws like
/// `save_checkpoint`.
void give_weights(World& world, const Pipeline& pipeline, const std::string& what,
                  const std::function<std::unique_ptr<WeightSink>()>& make);

}  // namespace stagecraft
