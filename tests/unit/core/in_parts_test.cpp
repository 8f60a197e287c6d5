#include "stagecraft/core/in_parts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

constexpr std::size_t kLarge = 1 << 24;  // enough actions for every core there is

TEST(InParts, EveryIndexComesOnceWhateverTheSize) {
  for (const std::size_t count : {0, 1, 2, 3, 7, 100}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1000}, kLarge}) {
      std::vector<std::atomic<int>> seen(count);
      in_parts(count, size, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) ++seen[i];
      });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
  }
}

TEST(InParts, SmallWorkIsOnePart) {
  int calls = 0;
  in_parts(100, 1000, [&](std::size_t, std::size_t) { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(InParts, ThrowsWhatALoopWouldHaveThrownFirst) {
  const auto fail_from = [](std::size_t first_bad) {
    return [=](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        if (i >= first_bad) throw std::runtime_error(std::to_string(i));
      }
    };
  };
  for (const std::size_t first_bad : {0, 3, 60, 99}) {
    try {
      in_parts(100, kLarge, fail_from(first_bad));
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), std::to_string(first_bad));
    }
  }
}

}  // namespace
}  // namespace stagecraft
