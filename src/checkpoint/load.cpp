#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <sstream>

#include "inventory.h"
#include "metadata.h"
#include "optimizer_state.h"
#include "stagecraft/checkpoint/checkpoint.h"
#include "stagecraft/checkpoint/dtypes.h"
#include "stagecraft/core/error.h"
#include "stagecraft/data_parallel/masters.h"
#include "stagecraft/file/safetensors.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/training/learning_rate.h"

namespace stagecraft {
namespace {

using safetensors::Entry;
using safetensors::Reader;

std::string form_text(at::ScalarType type, at::IntArrayRef shape) {
  const std::string dtype = dtype_name(type);
  return Entry{"", dtype.empty() ? c10::toString(type) : dtype, shape.vec(), 0, 0}.text();
}

/// One tensor of this rank, and its entry in the file; null if it has none.
struct Wanted {
  at::Tensor tensor;
  const Entry* entry;
};

/// The optimizer state of one parameter.
struct WantedState {
  at::Tensor parameter;
  std::vector<const Entry*> entries;  // by slot
};

class Load {
 public:
  Load(World& world, Pipeline& pipeline, const std::string& path, const LoadOptions& options)
      : world_(world), pipeline_(pipeline), path_(path), options_(options) {}

  std::int64_t run() {
    Faults faults;
    together(world_, [&] { faults = open(); });
    if (!faults.empty()) throw FileError(path_, faults.text());
    Faults of_optimizer;
    together(world_, [&] {
      faults = check();
      of_optimizer = merged(gather(world_, optimizer_faults_));
    });
    if (!faults.empty()) {
      throw FileError(path_, "it is not a checkpoint of this model: " + faults.text() +
                                 (of_optimizer.empty() ? "" : "; " + of_optimizer.text()) +
                                 ": load the model's own file, or make the model that the file is of");
    }
    if (!of_optimizer.empty()) throw FileError(path_, of_optimizer.text() + ", or load without an optimizer");
    together(world_, [&] { faults = read(); });
    if (!faults.empty()) {
      throw FileError(path_, faults.text() + ": fetch the file again, or load an older one before you go on");
    }
    return step_;
  }

 private:
  Faults open() {
    std::vector<std::string> own;
    try {
      reader_.emplace(path_);
    } catch (const FileError& error) {
      own.emplace_back(std::string_view(error.what()).substr(error.path().size() + 2));
    }
    const auto all = gather(world_, own);
    Faults faults;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].empty()) continue;
      if (all[r] == all[0]) {
        if (r == 0) faults.add(all[r][0]);
        continue;
      }
      faults.add("rank " + std::to_string(r) + ": " + all[r][0] +
                 " (every rank reads the file, so all must find it under this path)");
    }
    return faults;
  }

  // --- whether it fits ---

  Faults check() {
    std::vector<std::string> names;  // names that may be in the file
    const auto find = [&](const std::string& name) {
      names.push_back(name);
      return reader_->find(name);
    };
    for (const auto& [name, tensor] : weights_of(pipeline_)) {
      const Entry* entry = find(name);
      for (const std::string& other : other_names(pipeline_, name)) {
        const Entry* under_other = find(other);
        if (entry == nullptr) entry = under_other;
      }
      weights_.push_back({tensor, entry});
      require_like(name, weights_.back().entry, tensor.scalar_type(), sizes_of(tensor));
    }
    for (const std::string& name : not_saved(pipeline_)) names.push_back(name);
    if (options_.optimizer != nullptr) {
      kind_ = kind_of(*options_.optimizer);
      if (kind_ == nullptr) {
        optimizer_faults_.push_back("the state of this optimizer is not known: use " + known_optimizers());
      } else {
        check_optimizer(find);
      }
    }
    check_learning_rate();
    step_ = count(kStep);
    pipeline_steps_ = count(kPipelineSteps);
    read_loss_scaling();
    const auto all = gather(world_, names);
    const bool with_state = anywhere(checks_state_);
    std::set<std::string_view> known;
    for (const auto& of_rank : all) known.insert(of_rank.begin(), of_rank.end());
    for (const Entry& entry : reader_->entries()) {
      const bool is_state = entry.name.starts_with(kStatePrefix);
      if (!known.contains(entry.name) && (with_state || !is_state)) {
        fault(in_quotes(entry.name) + " is unexpected: no stage has it");
      }
    }
    return merged(gather(world_, faults_));
  }

  /// Whether `here` is true on any rank.
  bool anywhere(bool here) {
    const auto all = gather(world_, {here ? "yes" : "no"});
    return std::any_of(all.begin(), all.end(), [](const auto& of_rank) { return of_rank[0] == "yes"; });
  }

  template <typename Find>
  void check_optimizer(const Find& find) {
    const auto saved = reader_->metadata().find(kOptimizer);
    if (saved == reader_->metadata().end()) {
      optimizer_faults_.emplace_back("it has no optimizer state: take a file that has it");
      return;
    }
    if (saved->second != kind_->name()) {
      optimizer_faults_.push_back("its optimizer state is of " + in_quotes(saved->second) + ", but the optimizer is " +
                                  kind_->name() + ": use the same kind");
      return;
    }
    if (has_strangers(pipeline_, *options_.optimizer)) {
      optimizer_faults_.emplace_back(
          "the optimizer has parameters that no stage of its rank has: make it from pipeline.parameters()");
    }
    checks_state_ = true;
    const std::vector<Slot> slots = kind_->slots();
    for (const auto& [name, parameter] : optimized(pipeline_, *options_.optimizer)) {
      WantedState& state = states_.emplace_back(WantedState{parameter, {}});
      bool has_state = false;
      for (const Slot& slot : slots) {
        state.entries.push_back(find(state_name(slot, name)));
        has_state |= state.entries.back() != nullptr;
      }
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const bool needed = kind_->needs(*options_.optimizer, parameter, i, has_state);
        if (state.entries[i] == nullptr && !needed) continue;
        require_like(state_name(slots[i], name), state.entries[i],
                     slots[i].is_count ? at::kLong : parameter.scalar_type(),
                     slots[i].is_count ? at::IntArrayRef() : sizes_of(parameter));
      }
      if (!has_state) state.entries.clear();
    }
  }

  void check_learning_rate() {
    if (options_.other_learning_rate) return;
    if (options_.optimizer == nullptr && options_.learning_rate == nullptr) return;  // it does not train
    const auto found = reader_->metadata().find(kLearningRate);
    const std::string saved = found == reader_->metadata().end() ? "" : found->second;
    const std::string own = options_.learning_rate == nullptr ? "" : options_.learning_rate->text();
    if (saved == own) return;
    const auto text = [](const std::string& rate) { return rate.empty() ? "none" : in_quotes(rate); };
    optimizer_faults_.push_back("its learning rate is " + text(saved) + ", but that of this run is " + text(own) +
                                ": give LoadOptions::learning_rate the saved one, or set other_learning_rate to go on "
                                "with that of this run");
  }

  void require_like(const std::string& name, const Entry* entry, at::ScalarType type, at::IntArrayRef shape) {
    if (entry == nullptr) return fault(in_quotes(name) + " is missing");
    if (entry->dtype == dtype_name(type) && at::IntArrayRef(entry->shape) == shape) return;
    fault(in_quotes(name) + " is " + entry->text() + ", but the model has " + form_text(type, shape));
  }

  /// A number in the metadata; 0 when it is missing.
  std::int64_t count(const char* key) {
    const auto found = reader_->metadata().find(key);
    if (found == reader_->metadata().end()) return 0;
    const std::string& text = found->second;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      fault(std::string("its metadata ") + key + " is " + in_quotes(text) + ", not a whole number");
    }
    return value;
  }

  void read_loss_scaling() {
    const auto found = reader_->metadata().find(kLossScaling);
    if (found == reader_->metadata().end()) return;
    LossScalingState state;
    std::istringstream in(found->second);
    if (in >> state.scale >> state.updates && state.scale > 0 && state.updates >= 0) {
      loss_scaling_ = state;
    } else {
      fault(std::string("its metadata ") + kLossScaling + " is " + in_quotes(found->second) +
            ", not a positive number and a count");
    }
  }

  void fault(const std::string& text) { faults_.push_back(text); }

  // --- reading ---

  /// Returns the damaged tensors of all ranks.
  Faults read() {
    for (const Wanted& wanted : weights_) read_part(*wanted.entry, wanted.tensor.detach(), wanted.tensor);
    const std::vector<Slot> slots = kind_ == nullptr ? std::vector<Slot>() : kind_->slots();
    for (const WantedState& wanted : states_) {
      std::vector<at::Tensor> state;
      for (std::size_t i = 0; i < wanted.entries.size(); ++i) {
        at::Tensor& tensor = state.emplace_back();
        if (wanted.entries[i] == nullptr) continue;
        tensor = slots[i].is_count ? at::empty({}, at::kLong) : at::empty_like(wanted.parameter.detach());
        read_part(*wanted.entries[i], tensor, slots[i].is_count ? at::Tensor() : wanted.parameter);
      }
      kind_->set_state(*options_.optimizer, wanted.parameter, std::move(state));
    }
    const Faults damaged = merged(gather(world_, faults_));
    if (damaged.empty() && reader_->metadata().contains(kPipelineSteps)) {
      pipeline_.set_steps(static_cast<std::uint64_t>(pipeline_steps_));
      if (loss_scaling_) pipeline_.set_loss_scaling(*loss_scaling_);
    }
    return damaged;
  }

  [[nodiscard]] bool is_sharded(const at::Tensor& parameter) const {
    return parameter.defined() && pipeline_.masters() != nullptr && pipeline_.masters()->are_parts() &&
           pipeline_.masters()->has(parameter);
  }
  /// Of the whole tensor.
  [[nodiscard]] at::IntArrayRef sizes_of(const at::Tensor& parameter) const {
    return is_sharded(parameter) ? pipeline_.masters()->sizes_of(parameter) : parameter.sizes();
  }

  /// `tensor` belongs to `parameter`: if that is sharded, it gets this replica's part.
  void read_part(const Entry& entry, const at::Tensor& tensor, const at::Tensor& parameter) {
    if (!is_sharded(parameter)) return read_into(entry, tensor);
    const at::Tensor whole = at::empty(sizes_of(parameter), tensor.options());
    read_into(entry, whole);
    tensor.copy_(pipeline_.masters()->part_of(parameter, whole));
  }

  void read_into(const Entry& entry, const at::Tensor& tensor) {
    const bool in_place = tensor.is_cpu() && tensor.is_contiguous();
    const at::Tensor data = in_place ? tensor : at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
    try {
      reader_->read(entry, 0, data.mutable_data_ptr(), data.nbytes());
    } catch (const safetensors::ChecksumError&) {
      fault("tensor " + in_quotes(entry.name) + " is damaged, its data does not have the checksum that was written");
    }
    if (in_place) {
      tensor.unsafeGetTensorImpl()->bump_version();
    } else {
      tensor.copy_(data);
    }
  }

  World& world_;
  Pipeline& pipeline_;
  const std::string& path_;
  const LoadOptions& options_;
  std::optional<Reader> reader_;
  std::unique_ptr<OptimizerKind> kind_;
  std::vector<Wanted> weights_;
  std::vector<WantedState> states_;
  std::vector<std::string> faults_;
  std::vector<std::string> optimizer_faults_;
  bool checks_state_ = false;  // whether this rank compares optimizer state with the file
  std::int64_t step_ = 0;
  std::int64_t pipeline_steps_ = 0;
  std::optional<LossScalingState> loss_scaling_;
};

}  // namespace

std::int64_t load_checkpoint(World& world, Pipeline& pipeline, const std::string& path, const LoadOptions& options) {
  return Load(world, pipeline, path, options).run();
}

}  // namespace stagecraft
