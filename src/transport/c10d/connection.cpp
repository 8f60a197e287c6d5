#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstring>

#include "meeting.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/c10d.h"
#include "words_of.h"

namespace stagecraft {
namespace {

/// The longest text that ranks of a group exchange.
constexpr std::int64_t kRoom = 1024;

}  // namespace

// Each rank fills its own row; a maximum, which every backend has, gives all rows to all.
SocketConnection::Exchange exchange_by(c10::intrusive_ptr<::c10d::ProcessGroup> group,
                                       const std::optional<at::Device>& device) {
  return [group = std::move(group), device](const std::string& own) {
    const RankId rank(group->getRank());
    if (static_cast<std::int64_t>(own.size()) >= kRoom) throw InternalError("a rank has too much to say: " + own);
    const at::Tensor rows = at::zeros({group->getSize(), kRoom}, at::kByte);
    std::memcpy(rows[rank.value].data_ptr(), own.data(), own.size());
    at::Tensor shared = rows;
    const auto reduce = [&](const at::Tensor& tensor) {
      std::vector<at::Tensor> tensors{tensor};
      ::c10d::AllreduceOptions options;
      options.reduceOp = ::c10d::ReduceOp::MAX;
      group->allreduce(tensors, options)->wait();
      shared = tensors[0].cpu();
    };
    try {
      try {
        reduce(rows);
      } catch (const c10::Error& error) {
        // A group of NCCL alone takes no tensors of the host.
        if (!device || device->is_cpu()) throw;
        reduce(rows.to(*device));
      }
    } catch (const c10::Error& error) {
      throw TransportError("the process group cannot exchange tensors: " + words_of(error) +
                               "; make it with a backend for the CPU, such as gloo, or for the device",
                           rank);
    } catch (const std::exception& error) {
      throw TransportError("not all ranks of the process group have come to make a world: " + words_of(error), rank);
    }
    std::vector<std::string> all;
    for (std::int64_t r = 0; r < group->getSize(); ++r) {
      all.emplace_back(static_cast<const char*>(shared[r].const_data_ptr()));  // ends with a zero
    }
    return all;
  };
}

SocketConnection::Exchange exchange_by(c10::intrusive_ptr<::c10d::Store> store, RankId rank, int ranks,
                                       std::string name, Timeout timeout) {
  return [=, store = std::move(store), name = std::move(name)](const std::string& own) {
    return meet(*store, rank, ranks, "stagecraft/" + name + "/", timeout, own);
  };
}

}  // namespace stagecraft
