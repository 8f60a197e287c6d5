#include <ATen/ATen.h>

#include <algorithm>
#include <iomanip>
#include <map>
#include <optional>
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

namespace stagecraft {
namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

std::string shape_words(at::IntArrayRef sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += std::to_string(size) + ' ';
  return text;
}

std::vector<std::int64_t> shape_of(const std::string& words) {
  std::istringstream in(words);
  std::vector<std::int64_t> shape;
  for (std::int64_t size = 0; in >> size;) shape.push_back(size);
  return shape;
}

at::Tensor in_memory(const at::Tensor& tensor) {
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

/// Only for telling different tensors apart.
std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor data = in_memory(tensor);
  Checksum sum;
  sum.add(data.const_data_ptr(), data.nbytes());
  return sum.value();
}

/// An entry of the file: its type and shape, and the ranks that have it; the first one sends it.
struct Line {
  std::string dtype;
  std::string shape;
  std::vector<int> ranks;  // ranks of replica 0
  bool differs = false;
};

class Save {
 public:
  Save(World& world, const Pipeline& pipeline, const std::string& path, const SaveOptions& options)
      : world_(world), pipeline_(pipeline), path_(path), options_(options) {}

  void run() {
    Faults faults;
    together(world_, [&] { faults = take_stock(); });
    if (faults.empty()) together(world_, [&] { faults = compare_copies(); });
    if (!faults.empty()) throw InvalidArgument("cannot save " + path_ + ": " + faults.text());
    const std::int32_t id = world_.transport().new_group_id();
    together(world_, [&] { stream(id); });
  }

 private:
  // --- what there is ---

  Faults take_stock() {
    std::vector<std::string> faults;
    for (const auto& [name, tensor] : weights_of(pipeline_)) {
      const Item item{name, tensor, is_sharded(tensor) ? tensor : at::Tensor()};
      items_.push_back(item);
      for (const std::string& other : other_names(pipeline_, name)) items_.push_back({other, item.tensor, item.master});
    }
    for (const Item& item : items_) {
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
    std::vector<std::string> words = {kind_name_};
    for (const auto& [name, tensor, master] : items_) {
      const std::string dtype = dtype_name(tensor.scalar_type());
      if (name.find('\0') != std::string::npos) faults.push_back(in_quotes(name) + " holds a 0: rename it");
      if (dtype.empty() || tensor.layout() != at::kStrided || tensor.is_meta()) {
        faults.push_back(in_quotes(name) + " is " + std::string(tensor.toString()) +
                         ", which a safetensors file cannot hold: convert it, or leave it out with not_saved");
      }
      words.insert(
          words.end(),
          {name, dtype, shape_words(master.defined() ? pipeline_.masters()->sizes_of(master) : tensor.sizes())});
    }
    const Faults of_all = merged(gather(world_, faults));
    if (!of_all.empty()) return of_all;
    return list(gather(world_, words));
  }

  void add_optimizer(std::vector<std::string>& faults) {
    const auto kind = kind_of(*options_.optimizer);
    if (kind == nullptr) {
      faults.push_back("the state of this optimizer is not known: use " + known_optimizers() + ", or save without it");
      return;
    }
    if (has_strangers(pipeline_, *options_.optimizer)) {
      faults.push_back(
          "the optimizer has parameters that no stage of its rank has: make it from pipeline.parameters()");
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

  /// Makes lines_ from the words of the ranks of replica 0.
  Faults list(const std::vector<std::vector<std::string>>& by_rank) {
    Faults faults;
    for (std::size_t world_rank = 0; world_rank < by_rank.size();
         world_rank += static_cast<std::size_t>(world_.replicas())) {
      const std::vector<std::string>& words = by_rank[world_rank];
      if (!words[0].empty() && !kind_name_.empty() && words[0] != kind_name_) {
        faults.add("the optimizer is " + kind_name_ + " on one rank and " + words[0] + " on another: use one kind");
      }
      if (kind_name_.empty()) kind_name_ = words[0];
      for (std::size_t i = 1; i + 2 < words.size(); i += 3) {
        Line& line = lines_[words[i]];
        if (line.ranks.empty()) line = {words[i + 1], words[i + 2], {}};
        if (line.dtype != words[i + 1] || line.shape != words[i + 2]) line.differs = true;
        line.ranks.push_back(static_cast<int>(world_rank) / world_.replicas());
      }
    }
    for (const auto& [name, line] : lines_) {
      if (line.differs) faults.add(two_things(name));
    }
    return faults;
  }

  static std::string two_things(const std::string& name) {
    return in_quotes(name) +
           " is different tensors in different stages: give make_stage a prefix, so that names are those of "
           "the whole model";
  }

  /// Checks that tensors of several stages under one name (a tie, a copy) have the same values.
  Faults compare_copies() {
    std::vector<std::string> words;
    for (const Item& item : items_) {
      if (lines_.at(item.name).ranks.size() > 1) words.insert(words.end(), {item.name, number(hash_of(whole(item)))});
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

  // --- the file ---

  [[nodiscard]] safetensors::Metadata metadata() const {
    safetensors::Metadata all = options_.metadata;
    all.emplace(kFormat, "pt");
    all[kStep] = std::to_string(options_.step);
    all[kPipelineSteps] = number(pipeline_.steps());
    if (!kind_name_.empty()) all[kOptimizer] = kind_name_;
    const LossScalingState scaling = pipeline_.loss_scaling();
    std::ostringstream text;
    text << std::setprecision(17) << scaling.scale << ' ' << scaling.updates;
    if (scaling.scale != 1) all[kLossScaling] = text.str();
    return all;
  }

  /// Sends and writes one tensor after the other. Every rank takes part in the broadcast of each name, even if it has
  /// no part in the tensor, so that no wait lasts longer than one tensor takes.
  void stream(std::int32_t id) {
    const bool writes = world_.world_rank().value == 0;
    std::vector<safetensors::Entry> entries;
    for (const auto& [name, line] : lines_) entries.push_back({name, line.dtype, shape_of(line.shape), 0, 0});
    std::optional<safetensors::Writer> writer;
    if (writes) writer.emplace(path_, entries, metadata());
    if (writes) entries = writer->entries();  // in the order of the file
    std::map<std::string, const Item*> mine;
    for (const Item& item : items_) mine.emplace(item.name, &item);

    const auto write = [&](const safetensors::Entry& entry, const at::Tensor& tensor) {
      const at::Tensor data = in_memory(tensor);
      if (data.nbytes() != entry.bytes) throw InternalError("a tensor has changed its size while it was saved");
      writer->write(entry, data.const_data_ptr(), data.nbytes());
    };
    const auto during = world_.everyone().during("the saving of a checkpoint");
    const Purpose tensor_to_save{"a tensor of the checkpoint", {}, {}};
    at::Tensor last;  // received; written while the next one is in flight
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::string name = world_.everyone().broadcast({{}, writes ? entries[i].name : ""}, 0).header;
      if (writes && i > 0) write(entries[i - 1], last);
      const RankId sender(lines_.at(name).ranks.front());
      at::Tensor own;
      if (sender == world_.rank()) own = whole(*mine.at(name));  // all its replicas have a part
      if (world_.replica() != 0) continue;
      const Tag tag = Tag::collective(id, 0, static_cast<std::int32_t>(i));
      const std::vector<RankId>& ranks = world_.pipeline_ranks();
      if (writes) {
        last = sender == world_.rank() ? own
                                       : world_.transport()
                                             .receive(ranks[sender.index()], tag, world_.timeout(), &tensor_to_save)
                                             .tensors.at(0);
      } else if (sender == world_.rank()) {
        world_.transport().send(ranks.front(), tag, {{own.detach()}, ""});
      }
    }
    if (!writes) return;
    if (!entries.empty()) write(entries.back(), last);
    writer->commit();
  }

  struct Item {
    std::string name;
    at::Tensor tensor;
    at::Tensor master;  // of which sharded parameter it is a part; undefined: it is whole
  };
  [[nodiscard]] bool is_sharded(const at::Tensor& tensor) const {
    return pipeline_.masters() != nullptr && pipeline_.masters()->has(tensor);
  }
  /// Called by all replicas.
  [[nodiscard]] at::Tensor whole(const Item& item) const {
    return item.master.defined() ? pipeline_.masters()->whole_of(item.master, item.tensor) : item.tensor;
  }

  World& world_;
  const Pipeline& pipeline_;
  const std::string& path_;
  const SaveOptions& options_;
  std::vector<Item> items_;
  std::string kind_name_;  // of the optimizer
  std::map<std::string, Line> lines_;
};

}  // namespace

void save_checkpoint(World& world, const Pipeline& pipeline, const std::string& path, const SaveOptions& options) {
  Save(world, pipeline, path, options).run();
}

}  // namespace stagecraft
