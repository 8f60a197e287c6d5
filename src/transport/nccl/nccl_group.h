#pragma once

#include <memory>

#include "stagecraft/transport/message_group.h"
#include "watch.h"

namespace stagecraft::nccl {

/// Collectives of NCCL for tensors of the device, where they give what MessageGroup gives: plain sums, and copies. What
/// else there is (16-bit floats, which NCCL rounds at every addition; the largest, where NCCL loses NaN) is done by
/// messages.
///
/// Before each of them the members tell each other what they are about to give. So all of them take part or none does:
/// when one fails before, nothing is left waiting on a device, and tensors that are not alike are found.
class NcclGroup : public MessageGroup {
 public:
  NcclGroup(Transport& transport, std::shared_ptr<Watch> watch, std::vector<RankId> members, std::int32_t id,
            Timeout timeout, const std::string& name)
      : MessageGroup(transport, std::move(members), id, timeout, name), watch_(std::move(watch)) {}
  ~NcclGroup() override {
    if (communicator_) watch_->give_back(communicator_id_);
  }

  using MessageGroup::all_gather;
  using MessageGroup::all_reduce;
  void broadcast_into(const at::Tensor& tensor, int from) override;
  void all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction) override;
  at::Tensor all_gather(const at::Tensor& own) override;
  at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction) override;

 private:
  /// Whether it can be summed by NCCL.
  [[nodiscard]] bool suits(const at::Tensor& tensor, Reduction reduction) const;
  /// What the others give, as texts. Throws InvalidArgument where they are not alike; with `any_rows`, dimension 0 may
  /// differ.
  std::vector<std::string> announce(std::string_view call, const std::vector<at::Tensor>& tensors, bool any_rows);
  Communicator& communicator();
  /// Issues the operation after what the current stream has done, and before what it does next.
  void issue(std::string_view call, const Communicator::Operation& operation);

  std::shared_ptr<Watch> watch_;
  std::string communicator_id_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace stagecraft::nccl
