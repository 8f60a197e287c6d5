#include "bundles.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

/// Many small tensors travel together. Over MPI rank 0 holds about one bundle of each sender, so they must not be
/// large.
constexpr std::size_t kBundleBytes = std::size_t{16} << 20U;
constexpr std::size_t kBundleAlignment = 64;  // any tensor may begin here

std::size_t aligned(std::size_t bytes) { return (bytes + kBundleAlignment - 1) / kBundleAlignment * kBundleAlignment; }

}  // namespace

BundlePlan::BundlePlan(const std::map<std::string, StockLine>& lines, int replicas) {
  for (const auto& [name, line] : lines) entries_.push_back({name, line.dtype, line.shape, 0, 0});
  // As safetensors::Writer orders them.
  std::stable_sort(entries_.begin(), entries_.end(), [](const safetensors::Entry& a, const safetensors::Entry& b) {
    return safetensors::bits_of(a.dtype) > safetensors::bits_of(b.dtype);
  });
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const StockLine& line = lines.at(entries_[i].name);
    const auto width = static_cast<std::size_t>(safetensors::bits_of(line.dtype)) / 8;
    const std::int64_t all = line.elements();
    entries_[i].bytes = static_cast<std::size_t>(all) * width;
    if (all == 0) continue;
    const RankId first(line.ranks.front() * replicas);
    if (line.parts.empty()) {
      add(i, first, entries_[i].bytes);
      continue;
    }
    std::int64_t so_far = 0;
    for (std::size_t r = 0; r < line.parts.size() && so_far < all; ++r) {
      if (line.parts[r] > 0)
        add(i, RankId(first.value + static_cast<int>(r)), static_cast<std::size_t>(line.parts[r]) * width);
      so_far += line.parts[r];
    }
    if (so_far != all) {
      throw InternalError("the parts of " + in_quotes(entries_[i].name) + " have " + std::to_string(so_far) +
                          " elements, but it has " + std::to_string(all));
    }
  }
}

void BundlePlan::add(std::size_t entry, RankId sender, std::size_t bytes) {
  const auto found = open_.find(sender);
  if (found == open_.end() || bundles_[found->second].bytes + bytes > kBundleBytes) {
    open_[sender] = bundles_.size();
    bundles_.push_back({sender, 0, {}});
  }
  const std::size_t at = open_.at(sender);
  Bundle& bundle = bundles_[at];
  bundle.pieces.push_back(pieces_.size());
  pieces_.push_back({entry, at, bundle.bytes, bytes});
  bundle.bytes += aligned(bytes);
}

at::Tensor BundleMemory::memory(std::size_t place, std::size_t bytes, bool pinned) {
  if (kept_.size() <= place) kept_.resize(place + 1);
  at::Tensor& kept = kept_[place].memory;
  // Whoever sends or writes it holds the storage, not always the tensor.
  const bool is_free = kept.defined() && kept.use_count() == 1 && kept.storage().use_count() == 1;
  if (is_free && kept.nbytes() == bytes && kept_[place].is_pinned == pinned) return kept;
  kept.reset();  // before the new one is allocated
  kept = at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).pinned_memory(pinned));
  kept_[place].is_pinned = pinned;
  return kept;
}

std::vector<at::Tensor> BundleMemory::copy(const BundlePlan& plan, RankId rank, const std::vector<StockItem>& items) {
  const at::NoGradGuard no_grad;
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const StockItem& item : items) by_name.emplace(item.name, &item.tensor);
  std::vector<at::Tensor> mine;
  std::vector<c10::Stream> streams;
  for (const BundlePlan::Bundle& bundle : plan.bundles()) {
    if (bundle.sender != rank) continue;
    const auto tensor_of = [&](std::size_t piece) -> const at::Tensor& {
      return *by_name.at(plan.entries()[plan.pieces()[piece].entry].name);
    };
    const bool on_device =
        std::any_of(bundle.pieces.begin(), bundle.pieces.end(), [&](std::size_t p) { return tensor_of(p).is_cuda(); });
    const at::Tensor memory_of_bundle = memory(mine.size(), bundle.bytes, on_device);
    for (const std::size_t p : bundle.pieces) {
      const BundlePiece& piece = plan.pieces()[p];
      const at::Tensor& from = tensor_of(p);
      if (static_cast<std::size_t>(from.numel()) * from.itemsize() != piece.bytes) {
        throw InternalError("a tensor has changed its size while it was saved");
      }
      memory_of_bundle.narrow(0, static_cast<std::int64_t>(piece.begin), static_cast<std::int64_t>(piece.bytes))
          .view(from.scalar_type())
          .view(from.sizes())
          .copy_(from.detach(), /*non_blocking=*/true);
      if (from.is_cpu()) continue;
      const c10::Stream stream = current_stream(from.device());
      if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
    }
    mine.push_back(memory_of_bundle);
  }
  for (const c10::Stream& stream : streams) stream.synchronize();
  return mine;
}

}  // namespace stagecraft
