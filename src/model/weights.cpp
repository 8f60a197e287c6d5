#include "weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "torch_types.h"

namespace stagecraft {
namespace {

/// The part of a record that several tensors use, read as one piece.
struct Piece {
  graph::ElementType element;
  Extent extent;
  std::vector<int> inputs;
};

}  // namespace

Extent extent_of(const graph::StoredTensor& stored) {
  if (stored.elements() == 0) return {stored.offset, stored.offset};
  std::int64_t end = stored.offset + 1;
  for (std::size_t i = 0; i < stored.sizes.size(); ++i) end += (stored.sizes[i] - 1) * stored.strides[i];
  return {stored.offset, end};
}

LoadedTensors load_weights(const ZipArchive& archive, const graph::Program& program, const std::vector<int>& inputs,
                           at::Device device) {
  std::map<std::pair<std::string, graph::ElementType>, Piece> pieces;
  for (const int input : inputs) {
    const graph::StoredTensor& stored = program.inputs[static_cast<std::size_t>(input)].stored;
    const Extent own = extent_of(stored);
    const auto [entry, added] = pieces.try_emplace({stored.record, stored.element}, Piece{stored.element, own, {}});
    Piece& piece = entry->second;
    piece.extent = {std::min(piece.extent.begin, own.begin), std::max(piece.extent.end, own.end)};
    piece.inputs.push_back(input);
  }
  LoadedTensors tensors;
  for (const auto& [key, piece] : pieces) {
    const std::int64_t bytes = graph::bytes_of(piece.element);
    at::Tensor flat =
        at::empty({piece.extent.end - piece.extent.begin}, at::TensorOptions().dtype(scalar_type(piece.element)));
    archive.read(key.first, static_cast<std::uint64_t>(piece.extent.begin * bytes), flat.data_ptr(),
                 static_cast<std::size_t>(flat.numel() * bytes));
    if (device != flat.device()) flat = flat.to(device);
    for (const int input : piece.inputs) {
      const graph::Input& own = program.inputs[static_cast<std::size_t>(input)];
      at::Tensor tensor = flat.as_strided(own.stored.sizes, own.stored.strides, own.stored.offset - piece.extent.begin);
      tensor = tensor.detach();  // an independent tensor, not a view
      if (own.kind == graph::Input::Kind::kParameter) tensor.set_requires_grad(own.stored.requires_grad);
      tensors[input] = std::move(tensor);
    }
  }
  return tensors;
}

}  // namespace stagecraft
