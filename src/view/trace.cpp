#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>

#include "escape.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/view/render.h"

namespace stagecraft {
namespace {

/// The threads of a rank's process. Slices of one thread must not overlap, so the halves of an overlap are on two
/// threads.
enum Thread { kCompute, kOverlapped, kCommunication, kSharding };
/// Counts from 1, since viewers take thread 0 of process 0 for the system's idle thread.
constexpr int tid_of(int thread) { return thread + 1; }
constexpr std::array<std::string_view, 4> kThreadNames = {"compute", "compute, overlapped", "communication",
                                                          "sharding"};
constexpr std::array<std::string_view, 4> kCategories = {"compute", "compute", "communication", "sharding"};

constexpr Thread thread_of(ActionKind kind) {
  if (is_communication(kind)) return kCommunication;
  return is_compute(kind) ? kCompute : kSharding;
}

/// A number shared only by a SEND and its RECV: direction, receiving stage and microbatch.
std::uint64_t message_id(const Action& a) {
  const Action receive = is_send(a.kind()) ? counterpart(a) : a;
  const std::uint64_t backward = receive.kind() == ActionKind::kRecvBackward ? 1 : 0;
  const auto stage = static_cast<std::uint64_t>(receive.stage().value);
  return (stage << 32 | static_cast<std::uint32_t>(receive.microbatch().value)) << 1 | backward;
}

/// The messages with both ends in the schedule, sorted; viewers refuse an arrow with one end. The index in this list is
/// the arrow's id, since viewers store ids as doubles, which cannot hold every message_id.
std::vector<std::uint64_t> paired_messages(const Schedule& schedule) {
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> received;
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      if (is_send(action.kind())) sent.push_back(message_id(action));
      if (is_receive(action.kind())) received.push_back(message_id(action));
    }
  }
  std::sort(sent.begin(), sent.end());
  std::sort(received.begin(), received.end());
  std::vector<std::uint64_t> paired;
  std::set_intersection(sent.begin(), sent.end(), received.begin(), received.end(), std::back_inserter(paired));
  return paired;
}

class TraceWriter {
 public:
  TraceWriter(std::ostream& out, const Schedule& schedule)
      : out_(out), schedule_(schedule), messages_(paired_messages(schedule)) {}

  void write() {
    out_ << fmt::format(
        R"({{"displayTimeUnit":"ns",
"otherData":{{"schedule":"{}","ranks":{},"stages":{},"microbatches":{},"unit":"one slot is one microsecond"}},
"traceEvents":[)",
        detail::json_escaped(schedule_.name), schedule_.ranks(), schedule_.stages(), schedule_.microbatches);
    for (int rank = 0; rank < schedule_.ranks(); ++rank) write_rank(rank);
    out_ << "\n]}\n";
  }

 private:
  /// Buffers events: one event is too small for a write of its own, a row may be too large to hold.
  template <typename... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    buffer_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() > kBuffered) flush();
  }
  void flush() {
    out_ << buffer_;
    buffer_.clear();
  }

  void write_rank(int rank) {
    const Row& row = schedule_.rows[static_cast<std::size_t>(rank)];
    write_names(rank, row);
    for (std::size_t slot = 0; slot < row.size(); ++slot) {
      const Action& action = row[slot];
      if (action.is_idle()) continue;
      if (action.is_overlap()) {
        write_slice(rank, slot, action.first(), kCompute, to_text(action));
        write_slice(rank, slot, action.second(), kOverlapped, to_text(action));
        continue;
      }
      write_slice(rank, slot, action, thread_of(action.kind()), {});
      if (is_communication(action.kind())) write_flow(rank, slot, action);
    }
    flush();
  }

  void write_names(int rank, const Row& row) {
    std::array<bool, kThreadNames.size()> used{true};
    for (const Action& action : row) {
      if (action.is_idle()) continue;
      used[thread_of(action.kind())] = true;
      if (action.is_overlap()) used[kOverlapped] = true;
    }
    event(R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"Rank {0}"}}}})", rank);
    event(R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})", rank);
    for (std::size_t thread = 0; thread < used.size(); ++thread) {
      if (!used[thread]) continue;
      const int tid = tid_of(static_cast<int>(thread));
      event(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank, tid,
            kThreadNames[thread]);
      event(R"({{"ph":"M","name":"thread_sort_index","pid":{0},"tid":{1},"args":{{"sort_index":{1}}}}})", rank, tid);
    }
  }

  void write_slice(int rank, std::size_t slot, const Action& part, Thread thread, std::string_view overlap) {
    const std::string text = to_text(part);
    std::string args = fmt::format(R"("stage":{})", part.stage().value);
    if (has_microbatch(part.kind())) args += fmt::format(R"(,"microbatch":{})", part.microbatch().value);
    args += fmt::format(R"(,"kind":"{}")", kind_text(part.kind()));
    if (!overlap.empty()) args += fmt::format(R"(,"overlap":"{}")", overlap);
    event(R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":1,"args":{{{}}}}})", text,
          kCategories[thread], rank, tid_of(thread), slot, args);
  }

  /// An arrow leaves at the middle of its SEND and arrives three quarters into its RECV: both may be in the same step,
  /// and an arrow must not end before it begins.
  void write_flow(int rank, std::size_t slot, const Action& action) {
    const std::uint64_t id = message_id(action);
    const auto found = std::lower_bound(messages_.begin(), messages_.end(), id);
    if (found == messages_.end() || *found != id) return;
    const auto number = found - messages_.begin();
    const bool send = is_send(action.kind());
    event(R"({{"ph":"{}",{}"name":"message","cat":"communication","id":{},"pid":{},"tid":{},"ts":{}.{}}})",
          send ? "s" : "f", send ? "" : R"("bp":"e",)", number, rank, tid_of(kCommunication), slot, send ? "5" : "75");
  }

  static constexpr std::size_t kBuffered = 1 << 16;

  std::ostream& out_;
  const Schedule& schedule_;
  std::vector<std::uint64_t> messages_;
  std::string buffer_;
  bool first_ = true;
};

}  // namespace

void write_trace(std::ostream& out, const Schedule& schedule) { TraceWriter(out, schedule).write(); }

}  // namespace stagecraft
