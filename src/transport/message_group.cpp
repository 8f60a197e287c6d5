#include "stagecraft/transport/message_group.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/no_messages.h"
#include "tensor_kinds.h"

namespace stagecraft {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes();
  return text.str();
}

std::string shapes_text(const std::vector<at::Tensor>& tensors) {
  constexpr std::size_t kEnough = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(tensors.size(), kEnough); ++i) {
    text += (text.empty() ? "" : ", ") + shape_text(tensors[i]);
  }
  return tensors.size() > kEnough ? text + ", ... (" + std::to_string(tensors.size()) + ")" : text;
}

/// A view of part `part` of a flat tensor, cut into `parts` parts whose sizes differ by at most 1.
at::Tensor part_of(const at::Tensor& flat, int part, int parts) {
  const std::int64_t share = flat.numel() / parts;
  const std::int64_t rest = flat.numel() % parts;
  const std::int64_t begin = share * part + std::min<std::int64_t>(part, rest);
  return flat.narrow(0, begin, share + (part < rest ? 1 : 0));
}

/// Throws InvalidArgument for a tensor that cannot be written in place.
void check_writable(const at::Tensor& tensor) {
  if (is_sparse_of_any_layout(tensor) || at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  throw InvalidArgument("several elements of the tensor " + shape_text(tensor) +
                        " are one place in memory (expand): a collective cannot write into it; give it a clone");
}

/// The tensor with one dimension: a view if it is contiguous, otherwise a copy.
at::Tensor flattened(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous().view({-1});
}

bool is_narrow_float(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

}  // namespace

/// One collective in flight: sends and receives its messages, in rounds.
class MessageGroup::Collective {
 public:
  Collective(MessageGroup& group, std::string_view call)
      : group_(group), purpose_{group.what_, group.call_.empty() ? call : group.call_, group.name_} {
    NoMessages::check();  // before it counts
    // The messages of a failed step are gone, and members may have been at different collectives: all count from 0
    // again.
    const std::uint64_t failed = group.transport_.failed_steps();
    if (failed != group.failed_steps_) group.collectives_ = 0;
    group.failed_steps_ = failed;
    number_ = group.collectives_;
    group.collectives_ = number_ == INT32_MAX ? 0 : number_ + 1;
  }

  void send(int to, int round, Message message) const {
    group_.transport_.send(rank(to), tag(round), std::move(message));
  }
  void expect(int from, int round) const { group_.transport_.post_receive(rank(from), tag(round)); }
  [[nodiscard]] Message receive(int from, int round) const {
    return group_.transport_.receive(rank(from), tag(round), group_.timeout_, &purpose_);
  }
  /// Receives a tensor of the type and shape of `like`; with `any_rows`, dimension 0 may differ.
  [[nodiscard]] at::Tensor receive_like(const at::Tensor& like, int from, int round, bool any_rows = false) const {
    return receive_like(std::vector<at::Tensor>{like}, from, round, any_rows)[0];
  }
  [[nodiscard]] std::vector<at::Tensor> receive_like(const std::vector<at::Tensor>& like, int from, int round,
                                                     bool any_rows = false) const {
    Message message = receive(from, round);
    const auto skip = static_cast<std::size_t>(any_rows ? 1 : 0);
    const auto is_alike = [&](const at::Tensor& a, const at::Tensor& b) {
      return a.scalar_type() == b.scalar_type() && a.dim() == b.dim() && a.sizes().slice(skip) == b.sizes().slice(skip);
    };
    if (!std::equal(like.begin(), like.end(), message.tensors.begin(), message.tensors.end(), is_alike)) {
      throw InvalidArgument("the ranks of a collective must give tensors alike: rank " +
                            std::to_string(rank(from).value) + " has " + shapes_text(message.tensors) + ", rank " +
                            std::to_string(rank(group_.place()).value) + " has " + shapes_text(like) + " (" +
                            group_.text() + ")");
    }
    // The transport delivers tensors on the rank's device; move them to the device of `like`.
    for (std::size_t i = 0; i < like.size(); ++i) message.tensors[i] = message.tensors[i].to(like[i].device());
    return std::move(message.tensors);
  }

  /// Calls `visit` for every other member, each member beginning with the one after it.
  template <typename Visit>
  void for_each_other(const Visit& visit) const {
    for (int step = 1; step < group_.size(); ++step) visit((group_.place() + step) % group_.size());
  }

  /// Tells `to` that its data, on the device of `given`, has been read.
  void acknowledge(int to, int round, const at::Tensor& given) const {
    Message nothing;
    // On a device with streams the read is only issued: an empty tensor makes the receiver's stream wait for it.
    if (!given.is_cpu()) nothing.tensors.push_back(at::empty({0}, given.options()));
    send(to, round, std::move(nothing));
  }
  /// Returns when all others have read what this member gave them.
  void until_all_have_read(int round, const at::Tensor& given) const {
    for_each_other([&](int other) { expect(other, round); });
    for_each_other([&](int other) { acknowledge(other, round, given); });
    for_each_other([&](int other) { (void)receive(other, round); });
  }

 private:
  [[nodiscard]] RankId rank(int place) const { return group_.members()[static_cast<std::size_t>(place)]; }
  [[nodiscard]] Tag tag(int round) const { return Tag::collective(group_.id_, round, number_); }

  MessageGroup& group_;
  Purpose purpose_;
  std::int32_t number_ = 0;
};

namespace {

/// A member's parent and children in the binomial tree of a broadcast from `from`.
struct Branch {
  int parent = -1;
  std::vector<int> children;  // largest subtree first

  Branch(int place, int size, int from) {
    const int own = (place - from + size) % size;
    const int reach = own == 0 ? size : own & -own;
    for (int step = 1; step < reach && own + step < size; step *= 2) children.push_back((own + step + from) % size);
    std::reverse(children.begin(), children.end());
    if (own != 0) parent = ((own & (own - 1)) + from) % size;
  }
};

}  // namespace

namespace {

/// This rank's position among the members.
int place_among(const std::vector<RankId>& members, const Transport& transport) {
  int place = -1;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].value < 0 || members[i].value >= transport.ranks()) {
      throw InvalidArgument("a group names rank " + std::to_string(members[i].value) +
                            ", but the world has ranks 0 to " + std::to_string(transport.ranks() - 1));
    }
    if (std::count(members.begin(), members.end(), members[i]) > 1) {
      throw InvalidArgument("a group names rank " + std::to_string(members[i].value) + " twice: name each once");
    }
    if (members[i] == transport.rank()) place = static_cast<int>(i);
  }
  if (place >= 0) return place;
  throw InvalidArgument("rank " + std::to_string(transport.rank().value) +
                        " makes a group without itself: only members make it");
}

}  // namespace

MessageGroup::MessageGroup(Transport& transport, std::vector<RankId> members, std::int32_t id, Timeout timeout,
                           std::string name)
    : Group(members, place_among(members, transport)),
      transport_(transport),
      id_(id),
      timeout_(timeout),
      name_(std::move(name)),
      failed_steps_(transport.failed_steps()) {
  if (name_.empty()) {
    name_ = id_ < 0 ? "Stagecraft's group " + std::to_string(-id_) : "group " + std::to_string(id_);
  }
}

std::string MessageGroup::text() const {
  std::string ranks;
  for (const RankId rank : members()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank.value);
  return "a group of rank " + ranks;
}

void MessageGroup::check_place(int place) const {
  if (place >= 0 && place < size()) return;
  throw InvalidArgument("there is no member " + std::to_string(place) + " in " + text() + ": members are 0 to " +
                        std::to_string(size() - 1));
}

Message MessageGroup::broadcast(Message message, int from) {
  check_place(from);
  const Collective collective(*this, "broadcast");
  const Branch branch(place(), size(), from);
  if (branch.parent >= 0) message = collective.receive(branch.parent, 0);
  for (const int child : branch.children) collective.send(child, 0, message);
  return message;
}

std::vector<Message> MessageGroup::collect(Message own, int to) {
  check_place(to);
  const Collective collective(*this, "collect");
  if (place() != to) {
    collective.send(to, 0, std::move(own));
    return {};
  }
  std::vector<Message> all(members().size());
  collective.for_each_other([&](int other) { collective.expect(other, 0); });
  collective.for_each_other([&](int other) { all[static_cast<std::size_t>(other)] = collective.receive(other, 0); });
  all[static_cast<std::size_t>(place())] = std::move(own);
  return all;
}

std::vector<Message> MessageGroup::all_gather(Message own) {
  const Collective collective(*this, "all_gather");
  std::vector<Message> all(members().size());
  collective.for_each_other([&](int other) { collective.expect(other, 0); });
  collective.for_each_other([&](int other) { collective.send(other, 0, own); });
  collective.for_each_other([&](int other) { all[static_cast<std::size_t>(other)] = collective.receive(other, 0); });
  all[static_cast<std::size_t>(place())] = std::move(own);
  return all;
}

std::vector<std::string> MessageGroup::all_gather(const std::string& own) {
  // Through member 0: these are short, and it takes fewer messages than all to all.
  const During all_of_it = naming(call_.empty() ? "all_gather" : call_);
  std::string lengths;
  std::string words;
  for (const Message& message : collect({{}, own}, 0)) {
    lengths += std::to_string(message.header.size()) + ' ';
    words += message.header;
  }
  const std::string shared = broadcast({{}, lengths + words}, 0).header;
  std::istringstream in(shared);
  std::vector<std::size_t> sizes(members().size());
  for (std::size_t& size : sizes) in >> size;
  auto begin = static_cast<std::size_t>(in.tellg()) + 1;
  std::vector<std::string> all;
  for (const std::size_t size : sizes) {
    all.push_back(shared.substr(begin, size));
    begin += size;
  }
  return all;
}

void MessageGroup::barrier() {
  const During all_of_it = naming("barrier");
  all_gather(std::string());
}

void MessageGroup::broadcast_into(const at::Tensor& tensor, int from) {
  check_place(from);
  check_can_travel(tensor);
  check_writable(tensor);
  const Collective collective(*this, "broadcast_into");
  const Branch branch(place(), size(), from);
  at::Tensor value = tensor.detach();
  if (branch.parent >= 0) value = collective.receive_like(value, branch.parent, 0);
  for (const int child : branch.children) collective.send(child, 0, {{value}, ""});
  if (branch.parent >= 0) {
    const at::NoGradGuard no_graph;  // not detach: a write to a detached sparse tensor does not reach it
    tensor.copy_(value);
  }
  for (const int child : branch.children) (void)collective.receive(child, 1);
  if (branch.parent >= 0) collective.acknowledge(branch.parent, 1, value);
}

void MessageGroup::check_reduction(const at::Tensor& tensor, Reduction reduction) const {
  check_can_travel(tensor);
  if (is_sparse_of_any_layout(tensor)) {
    throw InvalidArgument("the tensors of all ranks are added up as dense ones, got a sparse " + shape_text(tensor) +
                          ": give its to_dense()");
  }
  if (reduction == Reduction::kMean && !tensor.is_floating_point() && !tensor.is_complex()) {
    throw InvalidArgument("a mean needs floating point numbers, got " + shape_text(tensor) +
                          ": convert it, or ask for the sum");
  }
  if (reduction == Reduction::kMax && tensor.is_complex()) {
    throw InvalidArgument("there is no largest of complex numbers, got " + shape_text(tensor));
  }
}

at::Tensor MessageGroup::reduced(const std::vector<at::Tensor>& parts, Reduction reduction) {
  const at::ScalarType type = parts[0].scalar_type();
  if (reduction == Reduction::kMax) {
    at::Tensor most = parts[0].clone();
    for (std::size_t i = 1; i < parts.size(); ++i) at::maximum_out(most, most, parts[i]);
    return most;
  }
  at::Tensor sum;
  if (parts.size() == 1) {
    sum = parts[0].clone();
  } else if (is_narrow_float(type)) {
    sum = parts[0].to(at::kFloat).add_(parts[1]);
  } else {
    sum = at::add(parts[0], parts[1]).to(type);  // bool stays bool
  }
  for (std::size_t i = 2; i < parts.size(); ++i) sum.add_(parts[i]);
  if (reduction == Reduction::kMean) sum.div_(static_cast<std::int64_t>(parts.size()));
  return sum.to(type);
}

void MessageGroup::all_reduce(const std::vector<at::Tensor>& tensors, Reduction reduction) {
  for (const at::Tensor& tensor : tensors) {
    check_reduction(tensor, reduction);
    check_writable(tensor);
  }
  if (size() == 1 || tensors.empty()) return;
  const Collective collective(*this, "all_reduce");
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(flattened(tensor));
  const auto parts = [&](int place) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& tensor : flat) all.push_back(part_of(tensor, place, size()));
    return all;
  };
  // Round 0: every member gets its part from all others, and reduces it.
  collective.for_each_other([&](int other) {
    collective.expect(other, 0);
    collective.expect(other, 1);
  });
  collective.for_each_other([&](int other) { collective.send(other, 0, {parts(other), ""}); });
  const std::vector<at::Tensor> own = parts(place());
  std::vector<std::vector<at::Tensor>> all(members().size(), own);
  collective.for_each_other(
      [&](int other) { all[static_cast<std::size_t>(other)] = collective.receive_like(own, other, 0); });
  std::vector<at::Tensor> sums;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::vector<at::Tensor> of_all;
    for (const auto& of_one : all) of_all.push_back(of_one[i]);
    sums.push_back(reduced(of_all, reduction));
  }
  all.clear();
  // Round 1: the reduced parts go to all. Who sends them has read what it got in round 0: that may now be overwritten.
  collective.for_each_other([&](int other) { collective.send(other, 1, {sums, ""}); });
  at::_foreach_copy_(own, sums);
  collective.for_each_other([&](int other) {
    const std::vector<at::Tensor> here = parts(other);
    at::_foreach_copy_(here, collective.receive_like(here, other, 1));
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!flat[i].is_alias_of(tensors[i])) tensors[i].detach().copy_(flat[i].view(tensors[i].sizes()));
  }
}

at::Tensor MessageGroup::all_gather(const at::Tensor& own) {
  if (own.dim() == 0)
    throw InvalidArgument("all_gather puts tensors together along dimension 0: give it one that has it");
  check_can_travel(own);
  const Collective collective(*this, "all_gather");
  const at::Tensor given = own.detach();
  std::vector<at::Tensor> all(members().size(), given);
  collective.for_each_other([&](int other) { collective.expect(other, 0); });
  collective.for_each_other([&](int other) { collective.send(other, 0, {{given}, ""}); });
  collective.for_each_other([&](int other) {
    all[static_cast<std::size_t>(other)] = collective.receive_like(given, other, 0, /*any_rows=*/true);
  });
  at::Tensor result = at::cat(all);
  collective.until_all_have_read(1, given);
  return result;
}

at::Tensor MessageGroup::reduce_scatter(const at::Tensor& tensor, Reduction reduction) {
  check_reduction(tensor, reduction);
  if (tensor.dim() == 0 || tensor.size(0) % size() != 0) {
    throw InvalidArgument("reduce_scatter cuts dimension 0 into " + std::to_string(size()) + " equal parts, got " +
                          shape_text(tensor) + ": pad it");
  }
  const Collective collective(*this, "reduce_scatter");
  const at::Tensor whole = tensor.detach();
  const std::int64_t rows = whole.size(0) / size();
  const auto part = [&](int place) { return whole.narrow(0, rows * place, rows); };
  collective.for_each_other([&](int other) { collective.expect(other, 0); });
  collective.for_each_other([&](int other) { collective.send(other, 0, {{part(other)}, ""}); });
  std::vector<at::Tensor> parts(members().size(), part(place()));
  collective.for_each_other(
      [&](int other) { parts[static_cast<std::size_t>(other)] = collective.receive_like(parts[0], other, 0); });
  at::Tensor result = reduced(parts, reduction);
  collective.until_all_have_read(1, whole);
  return result;
}

}  // namespace stagecraft
