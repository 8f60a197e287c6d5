#include "stagecraft/stage/stage.h"

#include "stagecraft/core/error.h"
#include "stagecraft/core/identity.h"

namespace stagecraft {
namespace {

thread_local Whereabouts here;

class Visit {
 public:
  explicit Visit(const StageCall& call) : before_(here) { here = {call.stage, call.microbatch}; }
  ~Visit() { here = before_; }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Whereabouts before_;
};

}  // namespace

Whereabouts whereabouts() { return here; }

std::string fingerprint_of(const NamedTensors& tensors) {
  Fingerprint fingerprint;
  std::int64_t numbers = 0;
  for (const auto& [name, tensor] : tensors) {
    fingerprint.add(name);
    if (!tensor.defined()) continue;
    fingerprint.add(TensorSpec::of(tensor).text());
    fingerprint.add(std::uint64_t{tensor.requires_grad()});
    numbers += tensor.numel();
  }
  return std::to_string(numbers) + " numbers, " + fingerprint.text();
}

const at::Tensor& StageCall::tensor(std::size_t argument) const {
  if (argument >= arguments.size()) {
    throw InvalidArgument("stage " + std::to_string(stage.value) + " takes argument " + std::to_string(argument) +
                          ", but got only " + std::to_string(arguments.size()) +
                          ": give it to step, or let the stage before return it");
  }
  if (!arguments[argument].is_tensor()) {
    throw InvalidArgument("stage " + std::to_string(stage.value) + ", argument " + std::to_string(argument) +
                          ": a tensor was expected, got " + arguments[argument].kind());
  }
  return arguments[argument].tensor();
}

void StageCall::require_at_most(std::size_t count) const {
  if (arguments.size() <= count) return;
  throw InvalidArgument("stage " + std::to_string(stage.value) + " got " + std::to_string(arguments.size()) +
                        " arguments, but its module takes " + std::to_string(count) +
                        ": give it as many, or make the stage with a callable that uses all of them");
}

Value StageCall::keyword(std::string_view name) const {
  for (const auto& [key, value] : keywords) {
    if (key == name) return value;
  }
  return {};
}

Stage::Stage(int index, Forward forward, NamedTensors parameters, NamedTensors buffers,
             EnterEvaluation enter_evaluation, StageOptions options)
    : index_(index),
      forward_(std::move(forward)),
      parameters_(std::move(parameters)),
      buffers_(std::move(buffers)),
      enter_evaluation_(std::move(enter_evaluation)),
      options_(std::move(options)) {
  if (index < 0) {
    throw InvalidArgument("stages are numbered from 0, got stage " + std::to_string(index));
  }
  if (!forward_) {
    throw InvalidArgument("stage " + std::to_string(index) + " has nothing to run: give it a callable");
  }
}

Value Stage::visit(const Forward& forward, const StageCall& call) {
  const Visit visit(call);
  return forward(call);
}

}  // namespace stagecraft
