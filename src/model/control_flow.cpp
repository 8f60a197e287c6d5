// Runs nodes of control flow: branches, loops, scans and maps. Operators run one by one, under autograd: the backward
// of a loop is that of the iterations that ran.
//
//     stage   f0 f1 f2 [scan] f4         slots of the stage; the bodies have slots of their own among them,
//                       |                which every iteration uses again
//                       b0 b1 b2  x iterations

#include <ATen/ops/stack.h>

#include "interpreter.h"
#include "layer_numbers.h"
#include "stagecraft/core/error.h"
#include "zero_gradients.h"

namespace stagecraft {
namespace {

using Values = std::vector<c10::IValue>;

bool is_true(const c10::IValue& predicate) {
  if (predicate.isTensor()) {
    if (predicate.toTensor().numel() == 1) return predicate.toTensor().is_nonzero();
    throw InvalidArgument("its predicate must be one number, but it is a tensor of " +
                          std::to_string(predicate.toTensor().numel()));
  }
  if (predicate.isBool()) return predicate.toBool();
  if (predicate.isInt()) return predicate.toInt() != 0;
  throw InvalidArgument("its predicate is neither a tensor nor true or false");
}

/// What tells the draws of one run of a body from those of another.
std::uint64_t layer_of_run(std::int64_t node, std::size_t body, std::int64_t iteration) {
  return combined(combined(static_cast<std::uint64_t>(node), body), static_cast<std::uint64_t>(iteration));
}

std::vector<at::Tensor> tensors_at(const std::vector<std::size_t>& places, const Values& values) {
  std::vector<at::Tensor> tensors;
  for (const std::size_t place : places) {
    if (values[place].isTensor()) tensors.push_back(values[place].toTensor());
  }
  return tensors;
}

/// The tensors from the first place on.
std::vector<at::Tensor> tensors_from(std::size_t first, const Values& values) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = first; i < values.size(); ++i) {
    if (values[i].isTensor()) tensors.push_back(values[i].toTensor());
  }
  return tensors;
}

/// The slices of the tensors along their first dimension, by tensor.
std::vector<std::vector<at::Tensor>> slices_of(const Values& arguments, std::size_t first, std::size_t count) {
  std::vector<std::vector<at::Tensor>> slices;
  for (std::size_t i = first; i < first + count; ++i) {
    const at::Tensor& tensor = arguments[i].toTensor();
    if (tensor.dim() == 0) throw InvalidArgument("it goes through a tensor without dimensions");
    if (tensor.size(0) == 0)
      throw InvalidArgument("it goes through a tensor whose first dimension is 0: there must be something to compute");
    slices.push_back(tensor.unbind(0));
    if (slices.back().size() != slices.front().size()) {
      throw InvalidArgument("it goes through tensors of " + std::to_string(slices.front().size()) + " and " +
                            std::to_string(slices.back().size()) + " slices: they must have equally many");
    }
  }
  return slices;
}

c10::IValue stacked(const std::vector<c10::IValue>& items) {
  if (items.empty() || !items.front().isTensor()) return {};
  std::vector<at::Tensor> tensors;
  tensors.reserve(items.size());
  for (const c10::IValue& item : items) tensors.push_back(item.toTensor());
  return at::stack(tensors);
}

}  // namespace

void Interpreter::run_control_flow(const ModelInstruction& instruction, Frame& frame, Frame& stack,
                                   std::int64_t layer) const {
  const ControlFlow& control = *instruction.control;
  switch (control.kind) {
    case ControlFlow::Kind::kBranch: {
      const std::size_t taken = is_true(stack[0]) ? 0 : 1;
      const CompiledBody& body = control.bodies[taken];
      const std::vector<at::Tensor> unused = tensors_at(body.unused, stack);
      stack = run_body(body, stack, 1, frame, {instruction.context, layer_of_run(layer, taken, 0)});
      add_zero_gradients(stack, unused);
      break;
    }
    case ControlFlow::Kind::kLoop:
      stack = run_loop(instruction, frame, std::move(stack), layer);
      break;
    case ControlFlow::Kind::kScan:
      stack = run_scan(instruction, frame, std::move(stack), layer);
      break;
  }
}

Interpreter::Frame Interpreter::run_body(const CompiledBody& body, const Frame& arguments, std::size_t first,
                                         Frame& frame, const Surrounding& where) const {
  for (std::size_t i = 0; i < body.formals.size(); ++i) {
    if (body.formals[i] >= 0) frame[static_cast<std::size_t>(body.formals[i])] = arguments[first + i];
  }
  execute(body.instructions, frame, where);
  Frame results;
  for (const CompiledBody::Output& output : body.outputs) {
    results.push_back(output.slot >= 0 ? frame[static_cast<std::size_t>(output.slot)] : output.fixed);
  }
  for (const std::int32_t slot : body.frees) frame[static_cast<std::size_t>(slot)] = c10::IValue();
  return results;
}

Interpreter::Frame Interpreter::run_loop(const ModelInstruction& instruction, Frame& frame, Frame carried,
                                         std::int64_t layer) const {
  const ControlFlow& control = *instruction.control;
  const auto where = [&](std::size_t body, std::int64_t iteration) {
    return Surrounding{instruction.context, layer_of_run(layer, body, iteration)};
  };
  const std::vector<at::Tensor> first_unused = tensors_at(control.bodies[1].unused, carried);
  for (std::int64_t iteration = 0;; ++iteration) {
    const Frame condition = run_body(control.bodies[0], carried, 0, frame, where(0, iteration));
    if (!is_true(condition.front())) {
      const std::vector<at::Tensor> unused = iteration == 0 ? tensors_from(control.carried, carried) : first_unused;
      carried.resize(control.carried);
      // The results are never the tensors that the loop was given.
      for (c10::IValue& value : carried) {
        if (iteration == 0 && value.isTensor()) value = value.toTensor().clone();
      }
      add_zero_gradients(carried, unused);
      return carried;
    }
    Frame next = run_body(control.bodies[1], carried, 0, frame, where(1, iteration));
    std::move(next.begin(), next.end(), carried.begin());
  }
}

Interpreter::Frame Interpreter::run_scan(const ModelInstruction& instruction, Frame& frame, Frame arguments,
                                         std::int64_t layer) const {
  const ControlFlow& control = *instruction.control;
  const auto slices = slices_of(arguments, control.carried, control.sliced);
  const std::vector<at::Tensor> unused = tensors_at(control.bodies[0].unused, arguments);
  std::vector<Frame> made(instruction.results.size() - control.carried);
  for (std::size_t iteration = 0; iteration < slices.front().size(); ++iteration) {
    for (std::size_t i = 0; i < control.sliced; ++i) arguments[control.carried + i] = slices[i][iteration];
    const Surrounding where{instruction.context, layer_of_run(layer, 0, static_cast<std::int64_t>(iteration))};
    Frame next = run_body(control.bodies[0], arguments, 0, frame, where);
    for (std::size_t i = 0; i < control.carried; ++i) arguments[i] = std::move(next[i]);
    for (std::size_t i = 0; i < made.size(); ++i) {
      const bool wanted = instruction.results[control.carried + i].slots.front() >= 0;
      if (wanted) made[i].push_back(std::move(next[control.carried + i]));
    }
  }
  arguments.resize(control.carried);
  for (const Frame& items : made) arguments.push_back(stacked(items));
  add_zero_gradients(arguments, unused);
  return arguments;
}

}  // namespace stagecraft
