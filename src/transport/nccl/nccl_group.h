#pragma once

#include <memory>

#include "stagecraft/transport/message_group.h"
#include "watch.h"

namespace stagecraft::nccl {

/// Collectives of NCCL for tensors of the device, where they give what MessageGroup gives: plain sums, and copies. What
/// else there is (16-bit floats, which NCCL rounds at every addition; the largest, where NCCL loses NaN) is done by
/// messages.
///
/// Before each of them the members tell each other what they are about to give. So tensors that are not alike are
/// found, and when one member fails before, nothing is left waiting on a device. Only a failure in this very moment can
/// end it for one member and not for another: see `recover`.
class NcclGroup : public MessageGroup {
 public:
  NcclGroup(Transport& transport, std::shared_ptr<Watch> watch, std::vector<RankId> members, std::int32_t id,
            Timeout timeout, const std::string& name)
      : MessageGroup(transport, std::move(members), id, timeout, name), watch_(std::move(watch)) {}
  ~NcclGroup() override {
    if (!communicator_id_.empty()) watch_->give_back(communicator_id_);
  }

  using MessageGroup::all_gather;
  using MessageGroup::all_reduce;
  void broadcast_into(const at::Tensor& tensor, int from) override;
  void all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction) override;
  at::Tensor all_gather(const at::Tensor& own) override;
  at::Tensor reduce_scatter(const at::Tensor& tensor, Reduction reduction) override;

 private:
  /// A collective: what it writes, all of it allocated, and how it is issued to write there or elsewhere.
  struct Call {
    using Run = std::function<void(const Library& nccl, Comm comm, Stream stream, const std::vector<at::Tensor>& to)>;
    std::string_view name;
    std::vector<at::Tensor> to;
    Run run;
    std::string label = {};  // the same on all members
  };

  /// Whether it can be summed by NCCL.
  [[nodiscard]] bool suits(const at::Tensor& tensor, Reduction reduction) const;
  /// Agrees with the others on the call, with everything allocated: what fails after it fails on one member alone.
  /// Returns how many rows each gives if `any_rows`: dimension 0 may differ. Throws InvalidArgument where the tensors
  /// are not alike.
  std::vector<std::string> announce(Call& call, const std::vector<at::Tensor>& tensors, bool any_rows);
  /// Makes this member part of the communicator, if it is not yet. All members call it.
  void connect();
  /// Throws TransportError if members have issued different collectives.
  void check_progress(const std::vector<std::string>& progress_of_all) const;
  /// Issues the call after what the current stream has done, and before what it does next.
  void issue(const Call& call);

  std::shared_ptr<Watch> watch_;
  std::string communicator_id_;  // member 0 has it before the communicator, so that it tells it again after a failure
  std::shared_ptr<Communicator> communicator_;
  std::uint64_t calls_ = 0;  // since the last failed step
  std::uint64_t failed_steps_ = 0;
};

}  // namespace stagecraft::nccl
