#include "stock.h"

#include <ATen/ATen.h>

#include <iomanip>
#include <sstream>

#include "metadata.h"
#include "optimizer_state.h"
#include "stagecraft/checkpoint/dtypes.h"
#include "stagecraft/core/error.h"
#include "stagecraft/data_parallel/masters.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/training/learning_rate.h"

namespace stagecraft {
namespace {

constexpr std::size_t kWordsPerItem = 4;  // name, dtype, shape, part

std::string words_of(at::IntArrayRef numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += std::to_string(number) + ' ';
  return text;
}

std::vector<std::int64_t> numbers_of(const std::string& words) {
  std::istringstream in(words);
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 0; in >> number;) numbers.push_back(number);
  return numbers;
}

/// Only for telling different tensors apart.
std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor data = in_memory(tensor);
  Checksum sum;
  sum.add(data.const_data_ptr(), data.nbytes());
  return sum.value();
}

std::string two_things(const std::string& name) {
  return in_quotes(name) +
         " is different tensors in different stages: give make_stage a prefix, so that names are those of "
         "the whole model";
}

}  // namespace

std::int64_t StockLine::elements() const { return c10::multiply_integers(shape); }

void Stock::take(const std::string& path) {
  Faults faults;
  together(world_, [&] { faults = count(); });
  if (faults.empty()) together(world_, [&] { faults = compare_copies(); });
  if (!faults.empty()) throw InvalidArgument("cannot save " + path + ": " + faults.text());
}

bool Stock::is_sharded(const at::Tensor& tensor) const {
  return pipeline_.masters() != nullptr && pipeline_.masters()->are_parts() && pipeline_.masters()->has(tensor);
}

at::Tensor Stock::whole(const StockItem& item) const {
  return item.master.defined() ? pipeline_.masters()->whole_of(item.master, item.tensor) : item.tensor;
}

Faults Stock::count() {
  std::vector<std::string> faults;
  for (const auto& [name, tensor] : weights_of(pipeline_, all_buffers_)) {
    const StockItem item{name, tensor, is_sharded(tensor) ? tensor : at::Tensor()};
    items_.push_back(item);
    for (const std::string& other : other_names(pipeline_, name)) items_.push_back({other, item.tensor, item.master});
  }
  for (const StockItem& item : items_) {
    if (item.name.starts_with(kStatePrefix))
      faults.push_back(in_quotes(item.name) + " is a name for optimizer state: rename it");
  }
  if (options_.optimizer != nullptr) add_optimizer(faults);
  for (const auto& [key, text] : options_.metadata) {
    if (key.starts_with(kOwnPrefix)) {
      faults.push_back("metadata " + in_quotes(key) + ": names that begin with " + kOwnPrefix +
                       " are taken: rename it");
    }
  }
  if (pipeline_.masters() != nullptr && pipeline_.masters()->are_parts()) {
    for (const Stage& stage : pipeline_.stages()) {
      for (const auto& [name, parameter] : stage.parameters()) {
        if (!parameter.defined() || parameter.is_contiguous()) continue;
        strides_[pipeline_.masters()->master_of(parameter).unsafeGetTensorImpl()] = parameter.strides().vec();
      }
    }
  }
  std::vector<std::string> words = {kind_name_,
                                    options_.learning_rate != nullptr ? options_.learning_rate->text() : ""};
  for (const StockItem& item : items_) {
    const at::Tensor& tensor = item.tensor;
    const std::string dtype = dtype_name(tensor.scalar_type());
    if (item.name.find('\0') != std::string::npos) faults.push_back(in_quotes(item.name) + " holds a 0: rename it");
    if (dtype.empty() || tensor.layout() != at::kStrided || tensor.is_meta()) {
      faults.push_back(in_quotes(item.name) + " is " + std::string(tensor.toString()) +
                       ", which a safetensors file cannot hold: convert it, or leave it out with not_saved");
    }
    const at::IntArrayRef shape = item.master.defined() ? pipeline_.masters()->sizes_of(item.master) : tensor.sizes();
    words.insert(words.end(), {item.name, dtype, words_of(shape), part_words(item)});
  }
  const Faults of_all = merged(gather(world_, faults));
  if (!of_all.empty()) return of_all;
  return list(gather(world_, words));
}

/// The elements of a part, then the strides of the whole unless it is contiguous.
std::string Stock::part_words(const StockItem& item) const {
  if (!item.master.defined()) return "";
  const auto strides = strides_.find(item.master.unsafeGetTensorImpl());
  const bool in_other_order = strides != strides_.end() && item.tensor.dim() == 1;
  return words_of(item.tensor.numel()) + (in_other_order ? words_of(strides->second) : "");
}

void Stock::add_optimizer(std::vector<std::string>& faults) {
  const auto kind = kind_of(*options_.optimizer);
  if (kind == nullptr) {
    faults.push_back("the state of this optimizer is not known: use " + known_optimizers() + ", or save without it");
    return;
  }
  if (has_strangers(pipeline_, *options_.optimizer)) {
    faults.push_back("the optimizer has parameters that no stage of its rank has: make it from pipeline.parameters()");
  }
  kind_name_ = kind->name();
  const std::vector<Slot> slots = kind->slots();
  for (const auto& [name, parameter] : optimized(pipeline_, *options_.optimizer)) {
    const std::vector<at::Tensor> state = kind->state_of(*options_.optimizer, parameter);
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (!state[i].defined()) continue;
      const bool is_part = !slots[i].is_count && is_sharded(parameter);
      items_.push_back({state_name(slots[i], name), state[i], is_part ? parameter : at::Tensor()});
    }
  }
}

/// Makes lines_ from the words of all ranks.
Faults Stock::list(const std::vector<std::vector<std::string>>& by_rank) {
  Faults faults;
  const auto replicas = static_cast<std::size_t>(world_.replicas());
  for (std::size_t world_rank = 0; world_rank < by_rank.size(); ++world_rank) {
    const std::vector<std::string>& words = by_rank[world_rank];
    const std::size_t replica = world_rank % replicas;
    const int rank = static_cast<int>(world_rank / replicas);
    if (words[1] != by_rank[0][1]) {
      faults.add("the learning rate is " + in_quotes(by_rank[0][1]) + " on rank 0 and " + in_quotes(words[1]) +
                 " on rank " + std::to_string(world_rank) + ": give all ranks the same one");
    }
    if (replica == 0) {
      if (!words[0].empty() && !kind_name_.empty() && words[0] != kind_name_) {
        faults.add("the optimizer is " + kind_name_ + " on one rank and " + words[0] + " on another: use one kind");
      }
      if (kind_name_.empty()) kind_name_ = words[0];
    }
    for (std::size_t i = 2; i + kWordsPerItem <= words.size(); i += kWordsPerItem) {
      const std::string& name = words[i];
      const std::string& dtype = words[i + 1];
      const std::vector<std::int64_t> shape = numbers_of(words[i + 2]);
      std::vector<std::int64_t> part = numbers_of(words[i + 3]);
      StockLine& line = lines_[name];
      if (replica == 0) {
        const bool is_first = line.ranks.empty();
        if (is_first) line = {dtype, shape, {}};
        if (line.dtype != dtype || line.shape != shape) line.differs = true;
        line.ranks.push_back(rank);
        if (is_first && !part.empty()) {
          line.parts.assign(replicas, 0);
          line.strides.assign(part.begin() + 1, part.end());
        }
      }
      const bool has_part = !line.parts.empty() && line.ranks.front() == rank && !part.empty();
      if (has_part) line.parts[replica] = part.front();
    }
  }
  // What only other replicas have is no line: replica 0 has what all have.
  std::erase_if(lines_, [](const auto& line) { return line.second.ranks.empty(); });
  for (const auto& [name, line] : lines_) {
    if (line.differs) faults.add(two_things(name));
  }
  return faults;
}

/// Checks that tensors of several stages under one name (a tie, a copy) have the same values.
Faults Stock::compare_copies() {
  std::vector<std::string> words;
  for (const StockItem& item : items_) {
    const auto line = lines_.find(item.name);
    if (line == lines_.end() || line->second.ranks.size() < 2) continue;
    words.insert(words.end(), {item.name, std::to_string(hash_of(whole(item)))});
  }
  Faults faults;
  std::map<std::string, std::string> hashes;
  const auto all = gather(world_, words);
  for (std::size_t r = 0; r < all.size(); r += static_cast<std::size_t>(world_.replicas())) {
    for (std::size_t i = 0; i + 1 < all[r].size(); i += 2) {
      const auto [found, is_new] = hashes.emplace(all[r][i], all[r][i + 1]);
      if (is_new || found->second == all[r][i + 1] || found->second.empty()) continue;
      faults.add(two_things(all[r][i]));
      found->second.clear();  // report it once
    }
  }
  return faults;
}

safetensors::Metadata Stock::metadata() const {
  safetensors::Metadata all = options_.metadata;
  all.emplace(kFormat, "pt");
  all[kStep] = std::to_string(options_.step);
  all[kPipelineSteps] = std::to_string(pipeline_.steps());
  if (!kind_name_.empty()) all[kOptimizer] = kind_name_;
  if (options_.learning_rate != nullptr) all[kLearningRate] = options_.learning_rate->text();
  const LossScalingState scaling = pipeline_.loss_scaling();
  std::ostringstream text;
  text << std::setprecision(17) << scaling.scale << ' ' << scaling.updates;
  if (scaling.scale != 1) all[kLossScaling] = text.str();
  return all;
}

}  // namespace stagecraft
