#include "nccl_group.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/no_messages.h"
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

void NcclGroup::connect() {
  if (place() == 0 && communicator_id_.empty()) communicator_id_ = watch_->id_for(members());
  communicator_id_ = broadcast({{}, communicator_id_}, 0).header;
  if (!communicator_) communicator_ = watch_->connect(communicator_id_, members(), place(), Use::kCollectives);
}

std::vector<std::string> NcclGroup::announce(Call& call, const std::vector<at::Tensor>& tensors, bool any_rows) {
  NoMessages::check();
  const auto as_one_call = naming(call.name);
  if (failed_steps() != failed_steps_) calls_ = 0;  // members may have been at different ones
  failed_steps_ = failed_steps();
  call.label = std::to_string(id()) + "." + std::to_string(failed_steps_) + "." + std::to_string(calls_++);
  std::string own;
  for (const at::Tensor& tensor : tensors) own += (own.empty() ? "" : ", ") + shape_text(tensor, any_rows ? 1 : 0);
  // "progress|rows|shape": rows may differ.
  own = (any_rows ? std::to_string(tensors[0].size(0)) : std::string()) + "|" + own;
  while (true) {
    if (communicator_) {
      communicator_->expect(call.label, [to = call.to, run = call.run](const Library& nccl, Comm comm, Stream stream) {
        std::vector<at::Tensor> elsewhere;
        for (const at::Tensor& one : to) elsewhere.push_back(at::empty_like(one));
        run(nccl, comm, stream, elsewhere);
      });
    }
    const std::string progress = communicator_ ? std::to_string(communicator_->progress().issued) : std::string();
    std::vector<std::string> all = MessageGroup::all_gather(progress + "|" + own);
    std::vector<std::string> rows;
    for (std::string& one : all) {
      const std::string given = one.substr(one.find('|') + 1);
      rows.push_back(given.substr(0, given.find('|')));
      const std::size_t place_of_it = rows.size() - 1;
      const auto shapes = [](const std::string& text) { return text.substr(text.find('|') + 1); };
      if (shapes(given) != shapes(own)) {
        throw InvalidArgument("the ranks of a collective must give tensors alike: rank " +
                              std::to_string(members()[place_of_it].value) + " has " + shapes(given) + ", rank " +
                              std::to_string(members()[static_cast<std::size_t>(place())].value) + " has " +
                              shapes(own) + " (" + std::string(call.name) + " of " + name() + ")");
      }
      one.resize(one.find('|'));
    }
    if (std::find(all.begin(), all.end(), std::string()) == all.end()) {
      check_progress(all);
      return rows;
    }
    connect();
  }
}

void NcclGroup::check_progress(const std::vector<std::string>& progress_of_all) const {
  for (std::size_t i = 1; i < progress_of_all.size(); ++i) {
    if (progress_of_all[i] == progress_of_all[0]) continue;
    throw TransportError("rank " + std::to_string(members()[0].value) + " has taken part in " + progress_of_all[0] +
                             " collectives of " + name() + " by NCCL, rank " + std::to_string(members()[i].value) +
                             " in " + progress_of_all[i] +
                             ", and what is missing cannot be made up for: end the program, and start it again from "
                             "its last checkpoint",
                         members()[i]);
  }
}

void NcclGroup::issue(const Call& call) {
  const std::string what = what_.empty() ? std::string(call.name) + " of " + name() : std::string(what_);
  const RankId other = members()[place() == 0 ? 1 : 0];
  if (!communicator_->wait_until_connected(Clock::now() + watch_->limit())) {
    throw TimeoutError("the ranks of " + name() + " have not all connected by NCCL in time", other);
  }
  const auto operation = [&](const Library& nccl, Comm comm, Stream stream) { call.run(nccl, comm, stream, call.to); };
  if (communicator_->take_part(what, call.label, operation)) return;
  barrier();  // says who is lost
  throw TransportError("the connection by NCCL has ended during " + what, other);
}

void NcclGroup::broadcast_into(const at::Tensor& tensor, int from) {
  const bool is_for_nccl = tensor.defined() && tensor.device() == watch_->device() && tensor.layout() == at::kStrided &&
                           tensor.numel() > 0 && can_be_written(tensor) && from >= 0 && from < size();
  if (!is_for_nccl) return MessageGroup::broadcast_into(tensor, from);
  const at::NoGradGuard no_graph;
  const at::Tensor flat = in_memory(tensor);
  Call call{
      "broadcast_into", {flat}, [=](const Library& nccl, Comm comm, Stream stream, const auto& to) {
        check(nccl.ncclBroadcast(flat.const_data_ptr(), to[0].data_ptr(), flat.nbytes(), kUint8, from, comm, stream),
              "ncclBroadcast", comm);
      }};
  announce(call, {tensor}, /*any_rows=*/false);
  issue(call);
  if (place() != from && !flat.is_alias_of(tensor)) tensor.detach().copy_(flat);
}

void NcclGroup::all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction) {
  const bool are_for_nccl = !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& one) {
    return one.defined() && suits(one, reduction) && can_be_written(one);
  });
  if (!are_for_nccl) return MessageGroup::all_reduce(tensors, reduction);
  for (const at::Tensor& tensor : tensors) check_reduction(tensor, reduction);
  const at::NoGradGuard no_graph;
  // Memory in another order on one member than on another must not be added up as it lies.
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(in_memory(tensor));
  Call call{"all_reduce", flat, [=](const Library& nccl, Comm comm, Stream stream, const auto& to) {
              check(nccl.ncclGroupStart(), "ncclGroupStart", comm);
              int result = kSuccess;
              for (std::size_t i = 0; i < flat.size() && result == kSuccess; ++i) {
                result = nccl.ncclAllReduce(flat[i].const_data_ptr(), to[i].data_ptr(),
                                            static_cast<std::size_t>(flat[i].numel()), *type_of(flat[i].scalar_type()),
                                            kSum, comm, stream);
              }
              const int end = nccl.ncclGroupEnd();  // in any case: this thread's next call would join the group
              check(result, "ncclAllReduce", comm);
              check(end, "ncclGroupEnd", comm);
            }};
  announce(call, tensors, /*any_rows=*/false);
  issue(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (reduction == Reduction::kMean) flat[i].div_(static_cast<std::int64_t>(size()));
    if (!flat[i].is_alias_of(tensors[i])) tensors[i].detach().copy_(flat[i]);
  }
}

at::Tensor NcclGroup::all_gather(const at::Tensor& own) {
  if (!own.defined() || own.device() != watch_->device() || own.layout() != at::kStrided || own.dim() == 0) {
    return MessageGroup::all_gather(own);
  }
  const at::NoGradGuard no_graph;
  const at::Tensor given = in_memory(own);
  std::vector<std::int64_t> sizes = given.sizes().vec();
  sizes[0] *= size();
  at::Tensor result = at::empty(sizes, given.options());
  Call call{"all_gather", {result}, [=](const Library& nccl, Comm comm, Stream stream, const auto& to) {
              check(nccl.ncclAllGather(given.const_data_ptr(), to[0].data_ptr(), given.nbytes(), kUint8, comm, stream),
                    "ncclAllGather", comm);
            }};
  const std::vector<std::string> rows = announce(call, {own}, /*any_rows=*/true);
  if (std::any_of(rows.begin(), rows.end(), [&](const std::string& one) { return one != rows[0]; })) {
    communicator_->expect_nothing();
    call = {};
    result.reset();
    return MessageGroup::all_gather(own);
  }
  if (given.nbytes() > 0) issue(call);
  return result;
}

at::Tensor NcclGroup::reduce_scatter(const at::Tensor& tensor, Reduction reduction) {
  const bool is_for_nccl = tensor.defined() && suits(tensor, reduction) && tensor.dim() > 0 &&
                           tensor.size(0) % size() == 0 && tensor.numel() > 0;
  if (!is_for_nccl) return MessageGroup::reduce_scatter(tensor, reduction);
  check_reduction(tensor, reduction);
  const at::NoGradGuard no_graph;
  const at::Tensor given = in_memory(tensor);
  std::vector<std::int64_t> sizes = given.sizes().vec();
  sizes[0] /= size();
  at::Tensor result = at::empty(sizes, given.options());
  Call call{
      "reduce_scatter", {result}, [=](const Library& nccl, Comm comm, Stream stream, const auto& to) {
        check(nccl.ncclReduceScatter(given.const_data_ptr(), to[0].data_ptr(), static_cast<std::size_t>(to[0].numel()),
                                     *type_of(given.scalar_type()), kSum, comm, stream),
              "ncclReduceScatter", comm);
      }};
  announce(call, {tensor}, /*any_rows=*/false);
  issue(call);
  if (reduction == Reduction::kMean) result.div_(static_cast<std::int64_t>(size()));
  return result;
}

}  // namespace stagecraft::nccl
