#include "captured_step.h"

#include <algorithm>

#include "capture_memory.h"

namespace stagecraft {
namespace {

bool is_lost_number(const GivenMemory& one) { return one.is_number && one.was_let_go(); }

/// Whether a step that was watched has read memory that was there before, and that the graph does not read.
bool reads_others(const CapturedStep& captured, CaptureMemory& eager_step) {
  const std::vector<GivenMemory>& given = captured.given;
  const std::vector<GivenMemory> now = eager_step.take_given();
  return std::any_of(now.begin(), now.end(), [&](const GivenMemory& one) {
    const auto is_it = [&](const GivenMemory& known) { return known.memory() == one.memory(); };
    if (std::any_of(given.begin(), given.end(), is_it)) return false;
    const bool is_inner = one.is_inner || !captured.kept.empty();  // see StepGraphs::share_memory
    return !is_inner || holders_of(*one.storage) > 1;
  });
}

/// After a step that has made this memory: whether it has made the same again of what modules had replaced.
bool has_made_again(CapturedStep& captured, const std::vector<WeakMemory>& made) {
  for (const KeptSince& one : captured.kept) {
    if (one.has_made_again && !one.has_made_again()) return false;
  }
  for (GivenMemory& one : captured.given) {
    if (!one.is_replaced || one.is_remade) continue;
    one.is_remade = is_among(*one.storage, made);
    if (!one.is_remade) return false;
  }
  return true;
}

}  // namespace

bool CapturedGradient::is_ours() const {
  return holders_of(tensor) == 1 && holders_of(tensor.storage()) == storage_uses;
}

void CapturedGradient::regain() {
  const bool is_as_made = tensor.has_storage() && tensor.is_alias_of(as_made) && tensor.sizes() == as_made.sizes() &&
                          tensor.strides() == as_made.strides() && tensor.storage_offset() == as_made.storage_offset();
  if (!is_as_made) tensor = as_made.detach();
}

bool CapturedStep::lacks_what_it_read() const {
  const auto was_let_go = [](const HostNumber& one) { return one.was_let_go(); };
  return reads_replaced || std::any_of(numbers.begin(), numbers.end(), was_let_go) ||
         std::any_of(given.begin(), given.end(), is_lost_number);
}

const char* CapturedStep::why_outdated() const {
  if (std::any_of(numbers.begin(), numbers.end(), [](const HostNumber& one) { return one.has_changed(); }) ||
      std::any_of(given.begin(), given.end(), is_lost_number)) {
    return "it reads a number from a tensor that is on the CPU and changes, or that is replaced by another: keep it in "
           "one tensor on the device, and change that in place";
  }
  if (std::any_of(given.begin(), given.end(), [](const GivenMemory& one) { return one.has_moved(); }) ||
      std::any_of(tensors.begin(), tensors.end(), [](const GivenTensor& one) { return one.has_changed(); })) {
    return "it reads a tensor that has another shape or other memory now: keep both, and change it in place";
  }
  if (std::any_of(tensors.begin(), tensors.end(), [](const GivenTensor& one) { return one.is_trained(); })) {
    return "it reads a tensor that is trained now and was not before";
  }
  if (is_abandoned) return "its first replay has failed";
  if (reads_replaced) {
    return "it reads a tensor that is replaced by another between steps: keep one tensor on the device and change it "
           "in place, or give it as an input";
  }
  if (begins_otherwise) {
    return "a module has a tensor now where it had none when the step was captured, and makes it or reads it otherwise "
           "then: make such tensors before the first step, and keep them";
  }
  if (std::any_of(moved_out.begin(), moved_out.end(), [](const MovedOut& one) { return !one.has_owner(); })) {
    return "a module leaves a tensor for others to read, which evaluations, steps of other shapes or the caller "
           "replace: let the module copy it into a buffer";
  }
  return nullptr;
}

void CapturedStep::note_replaced(bool by_modules) {
  // A module may make the same again, such as a mask for another shape, unless steps change it.
  const auto note = [&](bool may_be_same) {
    bool& mark = by_modules && may_be_same ? is_doubted : reads_replaced;
    mark = true;
  };
  for (const KeptSince& one : kept) {
    if (one.has_replaced && one.has_replaced()) note(/*may_be_same=*/true);
    if (one.has_added && one.has_added()) is_doubted = true;
  }
  const auto says_so = [](const KeptSince& one) { return one.begins_otherwise && one.begins_otherwise(); };
  if (!by_modules) begins_otherwise = std::any_of(kept.begin(), kept.end(), says_so);
  for (GivenMemory& one : given) {
    if (one.is_replaced || !one.was_let_go()) continue;
    one.is_replaced = by_modules && !one.is_changed;
    note(!one.is_changed);
  }
}

void CapturedStep::end_doubt(CaptureMemory& eager_step) {
  is_doubted = false;
  const std::vector<WeakMemory> made_now = eager_step.made(/*also_on_host=*/true);
  reads_replaced = reads_replaced || reads_others(*this, eager_step) || !has_made_again(*this, made_now);
}

bool CapturedStep::put_again() const {
  bool any = false;
  for (const KeptSince& one : kept) {
    if (!one.put_again) continue;
    one.put_again();
    any = true;
  }
  return any;
}

void CapturedStep::regain_gradients() const {
  for (const auto* gradients : {&before, &after}) {
    for (const GradientPtr& one : *gradients) {
      if (one) one->regain();
    }
  }
}

}  // namespace stagecraft
