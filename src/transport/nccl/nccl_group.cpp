#include "nccl_group.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft::nccl {
namespace {

/// None for types that NCCL does not sum as LibTorch does.
std::optional<DataType> type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return kFloat32;
    case at::kDouble:
      return kFloat64;
    case at::kInt:
      return kInt32;
    case at::kLong:
      return kInt64;
    case at::kChar:
      return kInt8;
    case at::kByte:
      return kUint8;
    default:
      return std::nullopt;
  }
}

std::string shape_text(const at::Tensor& tensor, std::size_t skip) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes().slice(std::min(skip, tensor.sizes().size()));
  return text.str();
}

/// The same numbers, one after the other in memory; the tensor itself where they are.
at::Tensor in_memory(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

/// Others are refused by MessageGroup.
bool can_be_written(const at::Tensor& tensor) {
  return !tensor._is_zerotensor() && at::has_internal_overlap(tensor) != at::MemOverlap::Yes;
}

}  // namespace

bool NcclGroup::suits(const at::Tensor& tensor, Reduction reduction) const {
  return tensor.device() == watch_->device() && tensor.layout() == at::kStrided && reduction != Reduction::kMax &&
         type_of(tensor.scalar_type());
}

Communicator& NcclGroup::communicator() {
  if (!communicator_) {
    communicator_id_ = broadcast({{}, place() == 0 ? watch_->id_for(members()) : std::string()}, 0).header;
    communicator_ = watch_->connect(communicator_id_, members(), place());
  }
  const auto until = Clock::now() + watch_->limit();
  if (!communicator_->wait_until_connected(until)) {
    throw TimeoutError("the ranks of " + name() + " have not all connected by NCCL in time",
                       members()[place() == 0 ? 1 : 0]);
  }
  return *communicator_;
}

std::vector<std::string> NcclGroup::announce(std::string_view call, const std::vector<at::Tensor>& tensors,
                                             bool any_rows) {
  const auto as_one_call = naming(call);
  std::string own;
  for (const at::Tensor& tensor : tensors) own += (own.empty() ? "" : ", ") + shape_text(tensor, any_rows ? 1 : 0);
  // "rows|shape": the first part may differ.
  const std::string rows = any_rows ? std::to_string(tensors[0].size(0)) : std::string();
  std::vector<std::string> all = MessageGroup::all_gather(rows + "|" + own);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string other = all[i].substr(all[i].find('|') + 1);
    if (other != own) {
      throw InvalidArgument("the ranks of a collective must give tensors alike: rank " +
                            std::to_string(members()[i].value) + " has " + other + ", rank " +
                            std::to_string(members()[static_cast<std::size_t>(place())].value) + " has " + own + " (" +
                            std::string(call) + " of " + name() + ")");
    }
    all[i].resize(all[i].find('|'));
  }
  return all;
}

void NcclGroup::issue(std::string_view call, const Communicator::Operation& operation) {
  Communicator& ranks = communicator();
  const c10::Stream current = current_stream(watch_->device());
  run_after(ranks.stream(), current);
  const std::string what = what_.empty() ? std::string(call) + " of " + name() : std::string(what_);
  if (!ranks.issue(what, operation)) {
    barrier();  // says who is lost
    throw TransportError("the connection by NCCL has ended during " + what, members()[place() == 0 ? 1 : 0]);
  }
  run_after(current, ranks.stream());
}

void NcclGroup::broadcast_into(const at::Tensor& tensor, int from) {
  const bool is_for_nccl = tensor.defined() && tensor.device() == watch_->device() && tensor.layout() == at::kStrided &&
                           tensor.numel() > 0 && can_be_written(tensor) && from >= 0 && from < size();
  if (!is_for_nccl) return MessageGroup::broadcast_into(tensor, from);
  announce("broadcast_into", {tensor}, /*any_rows=*/false);
  const at::NoGradGuard no_graph;
  const at::Tensor flat = in_memory(tensor);
  issue("broadcast_into", [&](const Library& nccl, Comm comm, Stream stream) {
    check(nccl.ncclBroadcast(flat.const_data_ptr(), flat.data_ptr(), flat.nbytes(), kUint8, from, comm, stream),
          "ncclBroadcast", comm);
  });
  if (place() != from && !flat.is_alias_of(tensor)) tensor.detach().copy_(flat);
}

void NcclGroup::all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction) {
  const bool are_for_nccl = !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& one) {
    return one.defined() && suits(one, reduction) && can_be_written(one);
  });
  if (!are_for_nccl) return MessageGroup::all_reduce(tensors, reduction);
  for (const at::Tensor& tensor : tensors) check_reduction(tensor, reduction);
  announce("all_reduce", tensors, /*any_rows=*/false);
  const at::NoGradGuard no_graph;
  // Memory in another order on one member than on another must not be added up as it lies.
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(in_memory(tensor));
  issue("all_reduce", [&](const Library& nccl, Comm comm, Stream stream) {
    check(nccl.ncclGroupStart(), "ncclGroupStart", comm);
    for (const at::Tensor& one : flat) {
      check(nccl.ncclAllReduce(one.const_data_ptr(), one.data_ptr(), static_cast<std::size_t>(one.numel()),
                               *type_of(one.scalar_type()), kSum, comm, stream),
            "ncclAllReduce", comm);
    }
    check(nccl.ncclGroupEnd(), "ncclGroupEnd", comm);
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (reduction == Reduction::kMean) flat[i].div_(static_cast<std::int64_t>(size()));
    if (!flat[i].is_alias_of(tensors[i])) tensors[i].detach().copy_(flat[i]);
  }
}

at::Tensor NcclGroup::all_gather(const at::Tensor& own) {
  if (!own.defined() || own.device() != watch_->device() || own.layout() != at::kStrided || own.dim() == 0) {
    return MessageGroup::all_gather(own);
  }
  const std::vector<std::string> rows = announce("all_gather", {own}, /*any_rows=*/true);
  if (std::any_of(rows.begin(), rows.end(), [&](const std::string& one) { return one != rows[0]; })) {
    return MessageGroup::all_gather(own);
  }
  const at::NoGradGuard no_graph;
  const at::Tensor given = in_memory(own);
  std::vector<std::int64_t> sizes = given.sizes().vec();
  sizes[0] *= size();
  at::Tensor result = at::empty(sizes, given.options());
  if (given.nbytes() == 0) return result;
  issue("all_gather", [&](const Library& nccl, Comm comm, Stream stream) {
    check(nccl.ncclAllGather(given.const_data_ptr(), result.data_ptr(), given.nbytes(), kUint8, comm, stream),
          "ncclAllGather", comm);
  });
  return result;
}

at::Tensor NcclGroup::reduce_scatter(const at::Tensor& tensor, Reduction reduction) {
  const bool is_for_nccl = tensor.defined() && suits(tensor, reduction) && tensor.dim() > 0 &&
                           tensor.size(0) % size() == 0 && tensor.numel() > 0;
  if (!is_for_nccl) return MessageGroup::reduce_scatter(tensor, reduction);
  check_reduction(tensor, reduction);
  announce("reduce_scatter", {tensor}, /*any_rows=*/false);
  const at::NoGradGuard no_graph;
  const at::Tensor given = in_memory(tensor);
  std::vector<std::int64_t> sizes = given.sizes().vec();
  sizes[0] /= size();
  at::Tensor result = at::empty(sizes, given.options());
  issue("reduce_scatter", [&](const Library& nccl, Comm comm, Stream stream) {
    check(nccl.ncclReduceScatter(given.const_data_ptr(), result.data_ptr(), static_cast<std::size_t>(result.numel()),
                                 *type_of(given.scalar_type()), kSum, comm, stream),
          "ncclReduceScatter", comm);
  });
  if (reduction == Reduction::kMean) result.div_(static_cast<std::int64_t>(size()));
  return result;
}

}  // namespace stagecraft::nccl
