#include "recovery.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <map>
#include <sstream>

#include "words_of.h"

namespace stagecraft::nccl {
namespace {

constexpr RankId kRoot(0);
constexpr std::int32_t kGroup = INT32_MIN;  // ids of groups count down from -1

/// How far communicators have come, by id.
using Standing = std::map<std::string, Communicator::Progress>;

std::string to_text(const Standing& all) {
  std::string text;
  for (const auto& [id, progress] : all) text += id + std::to_string(progress.issued) + ' ' + progress.last + '\n';
  return text;
}

Standing standing_from(const std::string& text) {
  Standing all;
  std::istringstream in(text);
  for (std::string id(sizeof(Id), '\0'); in.read(id.data(), sizeof(Id));) {
    Communicator::Progress& progress = all[id];
    in >> progress.issued;
    in.ignore();
    std::getline(in, progress.last);  // empty where nothing was issued
  }
  return all;
}

/// Of every communicator that some rank has come further with than `own`, how far that is.
Standing ahead_of(const Standing& own, const std::vector<Standing>& all) {
  Standing most = own;
  for (const Standing& other : all) {
    for (auto& [id, progress] : most) {
      const auto found = other.find(id);
      if (found != other.end() && found->second.issued > progress.issued) progress = found->second;
    }
  }
  std::erase_if(most, [&](const auto& one) { return one.second.issued == own.at(one.first).issued; });
  return most;
}

/// Tells rank 0 how far this one has come. Returns what others have come further with.
Standing compared(Transport& transport, const Standing& own, Timeout timeout) {
  // They belong to no step: the failure of the next one on a rank that is through with this must not end it for others.
  const auto tag = [](int round) { return Tag::collective(kGroup, round, 0); };
  const Purpose purpose{"how far all ranks have come with collectives of NCCL", {}, {}};
  if (transport.rank() != kRoot) {
    transport.send_lasting(kRoot, tag(0), {{}, to_text(own)});
    return standing_from(transport.receive_lasting(kRoot, tag(1), timeout, &purpose).header);
  }
  std::vector<Standing> all{own};
  for (int r = 1; r < transport.ranks(); ++r) {
    all.push_back(standing_from(transport.receive_lasting(RankId(r), tag(0), timeout, &purpose).header));
  }
  for (int r = 1; r < transport.ranks(); ++r) {
    transport.send_lasting(RankId(r), tag(1), {{}, to_text(ahead_of(all[RankId(r).index()], all))});
  }
  return ahead_of(own, all);
}

void make_up_for(Communicator& communicator, const Communicator::Progress& others, Clock::time_point until) {
  const Communicator::Operation* missing = communicator.expected(others.last);
  std::string members;
  for (const RankId member : communicator.members())
    members += (members.empty() ? "" : ", ") + std::to_string(member.value);
  if (missing == nullptr || others.issued != communicator.progress().issued + 1) {
    throw TransportError("this rank has taken part in " + std::to_string(communicator.progress().issued) +
                             " collectives by NCCL of rank " + members + ", another one in " +
                             std::to_string(others.issued) +
                             ", and what is missing cannot be made up for: end the program, and start it again from "
                             "its last checkpoint",
                         communicator.members().front());
  }
  const at::NoGradGuard no_graph;
  if (!communicator.wait_until_connected(until) ||
      !communicator.take_part("a collective of rank " + members + " that this rank had left out", others.last,
                              *missing)) {
    throw TransportError("there is no connection by NCCL of rank " + members, communicator.members().front());
  }
}

}  // namespace

void recover(Transport& transport, Watch& watch, Timeout timeout) {
  Standing own;
  std::map<std::string, std::shared_ptr<Communicator>> communicators;
  for (const auto& one : watch.all()) {
    if (one->progress().issued == 0 && !one->expects_any()) continue;  // it is not for collectives
    own.emplace(one->id(), one->progress());
    communicators.emplace(one->id(), one);
  }
  const Standing others = compared(transport, own, timeout);
  try {
    for (const auto& [id, progress] : others) make_up_for(*communicators.at(id), progress, Clock::now() + timeout);
  } catch (const c10::Error& error) {
    throw TransportError(words_of(error), transport.rank());
  }
  for (const auto& [id, communicator] : communicators) communicator->expect_nothing();
}

}  // namespace stagecraft::nccl
