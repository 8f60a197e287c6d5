// A step of AdamW on a CPU: fast_step beside LibTorch's own step, in turns, the best of each. Prints a line per case,
// and with a file's name writes JSON. Fails if a ratio is above its limit.
//
//   optimizer_bench [FILE.json]

#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>

#include "stagecraft/core/measurement.h"
#include "stagecraft/training/fast_step.h"

namespace {

constexpr int kTurns = 15;

struct Case {
  const char* name;
  int tensors;
  std::int64_t elements;
  int steps;  // per turn
  double limit;
};

std::vector<at::Tensor> weights_of(const Case& one) {
  std::vector<at::Tensor> weights;
  for (int i = 0; i < one.tensors; ++i) {
    weights.push_back(torch::randn({one.elements}).set_requires_grad(true));
    weights.back().mutable_grad() = torch::randn({one.elements});
  }
  return weights;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  bool failed = false;
  for (const Case& one : {Case{"many small: 150 tensors of 1,024", 150, 1024, 20, 0.5},
                          Case{"few large: 4 tensors of 4,194,304", 4, 4 << 20, 1, 0.7}}) {
    torch::optim::AdamW ours(weights_of(one)), theirs(weights_of(one));
    const auto seconds = [&](const auto& step) {
      const double start = stagecraft::seconds_now();
      for (int i = 0; i < one.steps; ++i) step();
      return (stagecraft::seconds_now() - start) / one.steps;
    };
    double best_ours = std::numeric_limits<double>::infinity(), best_theirs = best_ours;
    for (int turn = 0; turn < kTurns; ++turn) {
      best_ours = std::min(best_ours, seconds([&] { stagecraft::fast_step(ours); }));
      best_theirs = std::min(best_theirs, seconds([&] { theirs.step(); }));
    }
    const double ratio = best_ours / best_theirs;
    failed = failed || ratio > one.limit;
    std::cout << "AdamW, " << one.name << ": ours " << 1e3 * best_ours << " ms, LibTorch " << 1e3 * best_theirs
              << " ms: " << ratio << "x (at most " << one.limit
              << "x wanted: " << (ratio > one.limit ? "MISSED" : "met") << ")\n";
    json += std::string(json.empty() ? "[" : ",") + "\n {\"case\": \"" + one.name +
            "\", \"ours\": " + std::to_string(best_ours) + ", \"libtorch\": " + std::to_string(best_theirs) +
            ", \"ratio\": " + std::to_string(ratio) + ", \"limit\": " + std::to_string(one.limit) + "}";
  }
  if (argc > 1) std::ofstream(argv[1]) << json << "\n]\n";
  return failed ? 1 : 0;
}
