// Ping-pong of a tensor between two ranks: one-way time by size. Prints one line of JSON.
//
//   handover_bench local                two ranks as threads, and memcpy of as many bytes
//   mpirun -n 2 handover_bench ours     two ranks as processes, through the transport
//   mpirun -n 2 handover_bench plain    MPI_Send and MPI_Recv between two buffers, nothing else

#include <mpi.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <sstream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr std::int64_t kSmallest = 4 << 10;
constexpr std::int64_t kLargest = 64 << 20;
constexpr int kTurns = 15;

int rounds_for(std::int64_t bytes) { return static_cast<int>(std::clamp<std::int64_t>((8 << 20) / bytes, 2, 200)); }

/// Seconds per call, the best of kTurns.
template <typename Work>
double best_of(int rounds, const Work& work) {
  double best = 1e9;
  work();
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / rounds);
  }
  return best;
}

class Report {
 public:
  void add(std::int64_t bytes, const std::string& what, double seconds) {
    text_ << (text_.tellp() > 0 ? ", " : "") << "{\"bytes\": " << bytes << ", \"" << what << "\": " << seconds << "}";
  }
  void print() const { std::cout << "[" << text_.str() << "]" << std::endl; }

 private:
  std::ostringstream text_;
};

void through_transport(sc::World& world, const std::string& what) {
  Report report;
  const sc::RankId peer(1 - world.rank().value);
  sc::Transport& transport = world.transport();
  int count = 0;
  for (std::int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    at::Tensor ball = torch::zeros({bytes / 4});
    const double seconds = best_of(rounds_for(bytes), [&] {
      const sc::Tag there{sc::MessageKind::kForward, sc::StageId(0), sc::StageId(1), sc::MicrobatchId(count)};
      const sc::Tag back{sc::MessageKind::kBackward, sc::StageId(1), sc::StageId(0), sc::MicrobatchId(count)};
      ++count;
      if (world.is_first()) {
        transport.post_receive(peer, back);
        transport.send(peer, there, {{std::move(ball)}, ""});
        ball = transport.receive(peer, back, world.timeout()).tensors[0];
      } else {
        ball = transport.receive(peer, there, world.timeout()).tensors[0];
        transport.send(peer, back, {{std::move(ball)}, ""});
      }
    });
    report.add(bytes, what, seconds / 2);
  }
  if (world.is_first()) report.print();
}

void by_memcpy() {
  Report report;
  for (std::int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    std::vector<char> from(static_cast<std::size_t>(bytes), 1), to(from.size());
    report.add(bytes, "memcpy", best_of(rounds_for(bytes), [&] {
                 std::memcpy(to.data(), from.data(), from.size());
                 asm volatile("" : : "r"(to.data()) : "memory");
               }));
  }
  report.print();
}

int by_plain_mpi() {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  Report report;
  for (std::int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    std::vector<char> ball(static_cast<std::size_t>(bytes));
    const auto send = [&] { MPI_Send(ball.data(), static_cast<int>(bytes), MPI_BYTE, 1 - rank, 7, MPI_COMM_WORLD); };
    const auto receive = [&] {
      MPI_Recv(ball.data(), static_cast<int>(bytes), MPI_BYTE, 1 - rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    };
    const double seconds = best_of(rounds_for(bytes), [&] {
      if (rank == 0) {
        send();
        receive();
      } else {
        receive();
        send();
      }
    });
    report.add(bytes, "plain", seconds / 2);
  }
  if (rank == 0) report.print();
  MPI_Finalize();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "plain") return by_plain_mpi();
  if (mode == "local") {
    by_memcpy();
    return sc::launch(argc, argv, {.ranks = 2, .world = "threads"},
                      [](sc::World& world) { through_transport(world, "local"); });
  }
  if (mode == "ours") {
    return sc::launch(argc, argv, {.world = "mpi"}, [](sc::World& world) { through_transport(world, "mpi"); });
  }
  std::cerr << "usage: handover_bench local | mpirun -n 2 handover_bench ours|plain\n";
  return 2;
}
