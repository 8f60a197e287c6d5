#include <ATen/ATen.h>

#include <optional>

#include "stagecraft/checkpoint/checkpoint.h"
#include "stagecraft/core/error.h"
#include "stagecraft/runtime/together.h"
#include "stock.h"

namespace stagecraft {
namespace {

/// Sends and writes one tensor after the other. Every rank takes part in the broadcast of each name, even if it has no
/// part in the tensor, so that no wait lasts longer than one tensor takes.
void stream(World& world, const Stock& stock, const std::string& path, std::int32_t id) {
  const bool writes = world.world_rank().value == 0;
  std::vector<safetensors::Entry> entries;
  for (const auto& [name, line] : stock.lines()) entries.push_back({name, line.dtype, line.shape, 0, 0});
  std::optional<safetensors::Writer> writer;
  if (writes) writer.emplace(path, entries, stock.metadata());
  if (writes) entries = writer->entries();  // in the order of the file
  std::map<std::string, const StockItem*> mine;
  for (const StockItem& item : stock.items()) mine.emplace(item.name, &item);

  const auto write = [&](const safetensors::Entry& entry, const at::Tensor& tensor) {
    const at::Tensor data = in_memory(tensor);
    if (data.nbytes() != entry.bytes) throw InternalError("a tensor has changed its size while it was saved");
    writer->write(entry, data.const_data_ptr(), data.nbytes());
  };
  const auto during = world.everyone().during("the saving of a checkpoint");
  const Purpose tensor_to_save{"a tensor of the checkpoint", {}, {}};
  at::Tensor last;  // received; written while the next one is in flight
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string name = world.everyone().broadcast({{}, writes ? entries[i].name : ""}, 0).header;
    if (writes && i > 0) write(entries[i - 1], last);
    const RankId sender(stock.lines().at(name).ranks.front());
    at::Tensor own;
    if (sender == world.rank()) own = stock.whole(*mine.at(name));  // all its replicas have a part
    if (world.replica() != 0) continue;
    const Tag tag = Tag::collective(id, 0, static_cast<std::int32_t>(i));
    const std::vector<RankId>& ranks = world.pipeline_ranks();
    if (writes) {
      last =
          sender == world.rank()
              ? own
              : world.transport().receive(ranks[sender.index()], tag, world.timeout(), &tensor_to_save).tensors.at(0);
    } else if (sender == world.rank()) {
      world.transport().send(ranks.front(), tag, {{own.detach()}, ""});
    }
  }
  if (!writes) return;
  if (!entries.empty()) write(entries.back(), last);
  writer->commit();
}

}  // namespace

void save_checkpoint(World& world, const Pipeline& pipeline, const std::string& path, const SaveOptions& options) {
  Stock stock(world, pipeline, options);
  stock.take(path);
  const std::int32_t id = world.transport().new_group_id();
  together(world, [&] { stream(world, stock, path, id); });
}

}  // namespace stagecraft
