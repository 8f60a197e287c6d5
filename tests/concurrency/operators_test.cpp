// Every operator that models are made of, on several ranks of one process at once: the same bits as on one thread.
//
// LibTorch calls other libraries that are not always safe between threads (kernels picked at the first call, primitives
// that keep a caller's pointers), and an unsafe one silently gives wrong numbers. STAGECRAFT_THREAD_SAFETY_SECONDS is
// the time to search for one; every operator is tried at least once per number of ranks. To look closer:
// STAGECRAFT_THREAD_SAFETY_ONLY is a part of the names to try, STAGECRAFT_THREAD_SAFETY_SEED repeats a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <numeric>
#include <random>

#include "concurrency/operators.h"
#include "stagecraft/runtime/launch.h"

namespace stagecraft::concurrency {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  at::ScalarType type;
  const Operator* what;
};

const std::vector<Case>& cases() {
  static const std::vector<Operator> operators = [] {
    std::vector<Operator> all;
    for (const auto& part : {convolutions(), products(), pointwise(), reductions(), layers(), indexing()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  static const std::vector<Case> all = [] {
    std::vector<Case> made;
    for (const Operator& one : operators) {
      for (const at::ScalarType type : one.types) made.push_back({one.name + "/" + c10::toString(type), type, &one});
    }
    return made;
  }();
  return all;
}

/// One call. Ranks draw different values.
struct Call {
  const Case* what;
  std::uint64_t sizes;
  std::uint64_t values;
};

struct Outcome {
  Tensors results;
  std::string error;
};

/// The output and the gradients of all inputs.
Outcome compute(const Call& call, int rank) {
  try {
    Draw draw(call.what->type, call.sizes, call.values + static_cast<std::uint64_t>(rank));
    Outcome outcome;
    const at::Tensor output = call.what->what->compute(draw);
    outcome.results.push_back(output.detach());
    if (!output.requires_grad()) return outcome;
    const at::Tensor weights =
        at::arange(1, output.numel() + 1, at::kFloat).cos().view(output.sizes()).to(output.dtype());
    for (at::Tensor& gradient :
         torch::autograd::grad({output}, draw.inputs(), {weights}, std::nullopt, false, /*allow_unused=*/true)) {
      outcome.results.push_back(std::move(gradient));
    }
    return outcome;
  } catch (const c10::Error& error) {
    return {{}, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {{}, error.what()};
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

/// Why two outcomes are not the same; empty if they are.
std::string difference(const Outcome& got, const Outcome& expected) {
  if (!expected.error.empty()) return "fails on one thread: " + expected.error;
  if (!got.error.empty()) return "fails: " + got.error;
  for (std::size_t i = 0; i < expected.results.size(); ++i) {
    const at::Tensor &a = got.results[i], &b = expected.results[i];
    if (same_bits(a, b)) continue;
    const std::string which = i == 0 ? "output" : "gradient " + std::to_string(i - 1);
    if (a.sizes() != b.sizes()) return which + " has another shape";
    const double most = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
    return which + " differs by " + std::to_string(most) + " of " +
           std::to_string(b.to(at::kDouble).abs().max().item<double>());
  }
  return "";
}

struct Finding {
  int calls = 0;
  int wrong = 0;
  std::string first;
};

/// All ranks make all calls. With `together`, all ranks make each call at the same moment, so that they meet at the
/// first use of a shape; otherwise each rank has its own order.
void try_calls(const std::vector<Call>& calls, int ranks, bool together, std::map<std::string, Finding>& findings) {
  std::vector<std::vector<Outcome>> got(static_cast<std::size_t>(ranks), std::vector<Outcome>(calls.size()));
  std::barrier<> meeting(ranks);
  const auto run = [&](int r, bool meet) {
    std::vector<std::size_t> order(calls.size());
    std::iota(order.begin(), order.end(), 0);
    if (!together) std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(r)));
    for (const std::size_t i : order) {
      if (meet) meeting.arrive_and_wait();
      got[static_cast<std::size_t>(r)][i] = compute(calls[i], r);
    }
  };
  const LaunchOptions options = {.ranks = ranks, .threads_per_rank = 1};
  run_ranks(options, [&](World& world) { run(world.rank().value, together); });
  // The single thread runs last, so that the ranks are the first to initialise the operators.
  run_ranks({.ranks = 1, .threads_per_rank = 1}, [&](World&) {
    for (int r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        Finding& finding = findings[calls[i].what->name];
        ++finding.calls;
        const std::string why = difference(got[static_cast<std::size_t>(r)][i], compute(calls[i], r));
        if (why.empty()) continue;
        if (finding.wrong++ == 0) finding.first = why;
      }
    }
  });
}

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

class Operators : public testing::TestWithParam<int> {};

TEST_P(Operators, GiveTheSameBitsAsOneThread) {
  // On a processor without bfloat16 the first such layer makes LibTorch give up oneDNN for everything that follows.
  (void)at::mm(at::ones({64, 64}, at::kBFloat16), at::ones({64, 64}, at::kBFloat16).t());
  const std::uint64_t seed = number("STAGECRAFT_THREAD_SAFETY_SEED", std::random_device()());
  const std::uint64_t seconds = number("STAGECRAFT_THREAD_SAFETY_SECONDS", 10);
  const auto end = Clock::now() + std::chrono::milliseconds(seconds * 1000 / 2);  // for each of two numbers of ranks
  std::mt19937_64 dice(seed);
  std::map<std::string, Finding> findings;
  std::vector<const Case*> all;
  const char* only = std::getenv("STAGECRAFT_THREAD_SAFETY_ONLY");
  for (const Case& one : cases()) {
    if (only == nullptr || one.name.find(only) != std::string::npos) all.push_back(&one);
  }
  ASSERT_FALSE(all.empty()) << "no operator has " << only << " in its name";
  for (int round = 0; round == 0 || Clock::now() < end; ++round) {
    std::shuffle(all.begin(), all.end(), dice);
    constexpr std::size_t kAtOnce = 32;
    for (std::size_t first = 0; first < all.size() && (round == 0 || Clock::now() < end); first += kAtOnce) {
      std::vector<Call> calls;
      for (std::size_t i = first; i < std::min(first + kAtOnce, all.size()); ++i) {
        const std::uint64_t sizes = dice();
        for (int again = 0; again < 2; ++again) calls.push_back({all[i], sizes, dice() >> 8});
      }
      try_calls(calls, GetParam(), /*together=*/round % 2 == 0, findings);
    }
  }
  int calls = 0;
  std::string wrong;
  for (const auto& [name, finding] : findings) {
    calls += finding.calls;
    if (finding.wrong == 0) continue;
    wrong += "  " + name + ": " + std::to_string(finding.wrong) + " of " + std::to_string(finding.calls) + " calls, " +
             finding.first + "\n";
  }
  std::cout << GetParam() << " ranks, STAGECRAFT_THREAD_SAFETY_SEED=" << seed << ": " << findings.size()
            << " operators, " << calls << " calls\n";
  EXPECT_TRUE(wrong.empty()) << "other bits than on one thread:\n" << wrong;
}

INSTANTIATE_TEST_SUITE_P(, Operators, testing::Values(2, 4),
                         [](const auto& one) { return "On" + std::to_string(one.param) + "Ranks"; });

}  // namespace
}  // namespace stagecraft::concurrency
