#pragma once

#include <vector>

#include "stagecraft/runtime/pipeline.h"

namespace stagecraft {

/// The inputs of one step on one rank, cut into microbatches.
struct StepInputs {
  bool training = true;
  std::uint64_t number = 0;          // of the step
  std::vector<ValueList> arguments;  // by microbatch; of the first stage
  std::vector<ValueDict> keywords;   // by microbatch
  std::vector<Value> targets;        // by microbatch; empty when there are none
  std::vector<double> weights;       // of each microbatch's loss
  std::int64_t rows = 0;             // of all microbatches; 0 if unknown
  double replica_weight = 1;         // of this replica's losses, 1 on average
  int first_microbatch = 0;          // number of the first one, counted over all replicas
  const ValueDict* loss_keywords = nullptr;
  bool keep_outputs = false;
  bool only_shapes = false;  // on the meta device, without data
};

/// Cuts a batch into what the stages of one rank need of it.
class InputSplitter {
 public:
  /// `has_first`, `has_last`: whether the rank has the first stage, and the last one.
  InputSplitter(const PipelineOptions& options, int microbatches, bool has_first, bool has_last)
      : options_(options), microbatches_(microbatches), has_first_(has_first), has_last_(has_last) {}

  void split_batch(StepInputs& inputs, const ValueList& arguments, const StepOptions& options) const;
  /// They are cut already: one list of arguments, and one target, per microbatch.
  void take_microbatches(StepInputs& inputs, const std::vector<ValueList>& arguments, const std::vector<Value>& targets,
                         const StepOptions& options) const;

 private:
  void split_keywords(StepInputs& inputs, const ValueDict& keywords) const;
  void weigh(StepInputs& inputs, const std::vector<std::int64_t>& rows) const;

  const PipelineOptions& options_;
  int microbatches_;
  bool has_first_;
  bool has_last_;
};

}  // namespace stagecraft
