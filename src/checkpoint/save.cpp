#include <ATen/ATen.h>

#include <optional>

#include "stagecraft/checkpoint/checkpoint.h"
#include "stagecraft/checkpoint/weight_sink.h"
#include "stagecraft/core/error.h"
#include "stagecraft/runtime/together.h"
#include "stock.h"

namespace stagecraft {
namespace {

/// Writes the tensors of a stock as entries of a safetensors file.
class FileSink : public WeightSink {
 public:
  FileSink(const std::string& path, const Stock& stock) : writer_(path, entries_of(stock), stock.metadata()) {}

  [[nodiscard]] std::vector<std::string> order() const {
    std::vector<std::string> names;
    for (const safetensors::Entry& entry : writer_.entries()) names.push_back(entry.name);
    return names;
  }
  void write(const std::string& /*name*/, const at::Tensor& tensor) override {
    const safetensors::Entry& entry = writer_.entries()[next_++];
    if (tensor.nbytes() != entry.bytes) throw InternalError("a tensor has changed its size while it was saved");
    writer_.write(entry, tensor.const_data_ptr(), tensor.nbytes());
  }
  void commit() override { writer_.commit(); }

 private:
  static std::vector<safetensors::Entry> entries_of(const Stock& stock) {
    std::vector<safetensors::Entry> entries;
    for (const auto& [name, line] : stock.lines()) entries.push_back({name, line.dtype, line.shape, 0, 0});
    return entries;
  }

  safetensors::Writer writer_;
  std::size_t next_ = 0;
};

/// Sends and writes one tensor after the other, in this order; `order` and `sink` are those of the first rank. Every
/// rank takes part in the broadcast of each name, even if it has no part in the tensor, so that no wait lasts longer
/// than one tensor takes.
void stream(World& world, const Stock& stock, const std::vector<std::string>& order, WeightSink* sink,
            std::int32_t id) {
  std::map<std::string, const StockItem*> mine;
  for (const StockItem& item : stock.items()) mine.emplace(item.name, &item);
  const auto during = world.everyone().during("the saving of a checkpoint");
  const Purpose tensor_to_save{"a tensor of the checkpoint", {}, {}};
  at::Tensor last;  // received; written while the next one is in flight
  const std::size_t count = stock.lines().size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = world.everyone().broadcast({{}, sink != nullptr ? order[i] : ""}, 0).header;
    if (sink != nullptr && i > 0) sink->write(order[i - 1], in_memory(last));
    const RankId sender(stock.lines().at(name).ranks.front());
    at::Tensor own;
    if (sender == world.rank()) own = stock.whole(*mine.at(name));  // all its replicas have a part
    if (world.replica() != 0) continue;
    const Tag tag = Tag::collective(id, 0, static_cast<std::int32_t>(i));
    const std::vector<RankId>& ranks = world.pipeline_ranks();
    if (sink != nullptr) {
      last =
          sender == world.rank()
              ? own
              : world.transport().receive(ranks[sender.index()], tag, world.timeout(), &tensor_to_save).tensors.at(0);
    } else if (sender == world.rank()) {
      world.transport().send(ranks.front(), tag, {{own.detach()}, ""});
    }
  }
  if (sink == nullptr) return;
  if (count > 0) sink->write(order.back(), in_memory(last));
  sink->commit();
}

bool writes(const World& world) { return world.world_rank().value == 0; }

}  // namespace

void save_checkpoint(World& world, const Pipeline& pipeline, const std::string& path, const SaveOptions& options) {
  Stock stock(world, pipeline, options);
  stock.take(path);
  const std::int32_t id = world.transport().new_group_id();
  together(world, [&] {
    std::optional<FileSink> sink;
    if (writes(world)) sink.emplace(path, stock);
    stream(world, stock, sink ? sink->order() : std::vector<std::string>(), sink ? &*sink : nullptr, id);
  });
}

void give_weights(World& world, const Pipeline& pipeline, const std::string& what,
                  const std::function<std::unique_ptr<WeightSink>()>& make) {
  const SaveOptions options;
  Stock stock(world, pipeline, options, /*all_buffers=*/true);
  stock.take(what);
  const std::int32_t id = world.transport().new_group_id();
  together(world, [&] {
    const std::unique_ptr<WeightSink> sink = writes(world) ? make() : nullptr;
    std::vector<std::string> order;
    for (const auto& [name, line] : stock.lines()) order.push_back(name);
    stream(world, stock, order, sink.get(), id);
  });
}

}  // namespace stagecraft
