#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "stagecraft/transport/mpi.h"
#include "support/patience.h"

/// A test program under mpirun: all tests share one MPI world, and each must leave it as new. Tensors arrive on
/// STAGECRAFT_TEST_DEVICE, or on the CPU.
namespace stagecraft {

/// How many processes mpirun has started; 0 without it.
inline int processes() {
  if (!is_started_by_mpi()) return 0;
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (std::getenv(size) != nullptr) return std::atoi(std::getenv(size));
  }
  return 0;
}

class MpiEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    if (processes() == 0) return;
    at::set_num_threads(1);
    process_.emplace(kPatience);
    const char* device = std::getenv("STAGECRAFT_TEST_DEVICE");
    transport() = process_->connect(device != nullptr ? std::optional(at::Device(device)) : std::nullopt, {});
  }
  void TearDown() override {
    if (!process_) return;
    transport().reset();
    EXPECT_EQ(process_->finish(std::nullopt), 0);
  }
  static std::shared_ptr<Transport>& transport() {
    static std::shared_ptr<Transport> of_this_process;
    return of_this_process;
  }

 private:
  std::optional<MpiProcess> process_;
};

[[maybe_unused]] inline const testing::Environment* const kMpiEnvironment =
    testing::AddGlobalTestEnvironment(new MpiEnvironment);

}  // namespace stagecraft
