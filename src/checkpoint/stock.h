#pragma once

#include <map>
#include <string>
#include <vector>

#include "inventory.h"
#include "stagecraft/checkpoint/checkpoint.h"
#include "stagecraft/file/safetensors.h"

/// What a checkpoint will hold: found, compared and agreed on by all ranks before anything is written.
namespace stagecraft {

/// A tensor of this rank under one of its names in the file.
struct StockItem {
  std::string name;
  at::Tensor tensor;
  at::Tensor master;  // of which sharded parameter it is a part; undefined: it is whole
};

/// An entry of the file: its type and shape, and the ranks that have it; the first one sends it.
struct StockLine {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<int> ranks;  // ranks of replica 0
  bool differs = false;
  /// For a sharded tensor, how many elements each replica of the first rank has, one part after the other in memory.
  /// Empty: the tensor is whole.
  std::vector<std::int64_t> parts = {};
  /// The order in memory of the elements that the parts hold; empty: contiguous.
  std::vector<std::int64_t> strides = {};

  [[nodiscard]] std::int64_t elements() const;
};

class Stock {
 public:
  /// The arguments must outlive it. `all_buffers`: also those that are not saved.
  Stock(World& world, const Pipeline& pipeline, const SaveOptions& options, bool all_buffers = false)
      : world_(world), pipeline_(pipeline), options_(options), all_buffers_(all_buffers) {}

  /// Called by all ranks. Throws InvalidArgument on all, with everything that cannot be saved.
  void take(const std::string& path);

  [[nodiscard]] const std::vector<StockItem>& items() const { return items_; }
  /// By name; the same on all ranks.
  [[nodiscard]] const std::map<std::string, StockLine>& lines() const { return lines_; }
  [[nodiscard]] safetensors::Metadata metadata() const;
  /// Called by all replicas.
  [[nodiscard]] at::Tensor whole(const StockItem& item) const;

 private:
  Faults count();
  void add_optimizer(std::vector<std::string>& faults);
  [[nodiscard]] std::string part_words(const StockItem& item) const;
  Faults list(const std::vector<std::vector<std::string>>& by_rank);
  Faults compare_copies();
  [[nodiscard]] bool is_sharded(const at::Tensor& tensor) const;

  World& world_;
  const Pipeline& pipeline_;
  const SaveOptions& options_;
  bool all_buffers_;
  std::vector<StockItem> items_;
  std::string kind_name_;                                     // of the optimizer
  std::map<const void*, std::vector<std::int64_t>> strides_;  // of sharded parameters, by master
  std::map<std::string, StockLine> lines_;
};

}  // namespace stagecraft
