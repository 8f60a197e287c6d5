#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <memory>
#include <optional>

#include "stagecraft/transport/c10d.h"
#include "stagecraft/transport/mpi.h"
#include "support/patience.h"

/// A test program whose ranks are processes, started by mpirun or by support/start_processes.py: all tests share one
/// world, and each must leave it as new. Tensors arrive on STAGECRAFT_TEST_DEVICE, or on the CPU.
namespace stagecraft {

/// How many processes a launcher has started; 0 without one.
inline int processes() {
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"}) {
    if (std::getenv(size) != nullptr) return std::atoi(std::getenv(size));
  }
  return 0;
}

class ProcessEnvironment : public testing::Environment {
 public:
  /// See SocketConnection::Options. Set before the tests begin.
  static std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)>& wrap() {
    static std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)> of_this_program;
    return of_this_program;
  }
  static std::optional<at::Device> device() {
    const char* name = std::getenv("STAGECRAFT_TEST_DEVICE");
    return name != nullptr ? std::optional(at::Device(at::Device(name).type(), at::Device(name).is_cpu() ? -1 : 0))
                           : std::nullopt;
  }
  void SetUp() override {
    if (processes() == 0) return;
    at::set_num_threads(1);
    if (is_started_by_mpi()) {
      process_.emplace(kPatience);
      transport() = process_->connect(device(), {});
      return;
    }
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);  // as `launch` does
    const RankId rank(std::atoi(std::getenv("RANK")));
    ::c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
    options.isServer = rank == RankId(0);
    options.waitWorkers = false;
    store_ = c10::make_intrusive<::c10d::TCPStore>(std::getenv("MASTER_ADDR"), options);
    connection_.emplace(rank, processes(), exchange_by(store_, rank, processes(), "tests", kPatience),
                        SocketConnection::Options{device(), {}, {}, kPatience, wrap()});
    transport() = connection_->transport();
  }
  void TearDown() override {
    transport().reset();
    if (process_) {
      EXPECT_EQ(process_->finish(std::nullopt), 0);
    }
    if (connection_) {
      EXPECT_TRUE(connection_->finish(std::nullopt));
    }
    connection_.reset();
  }
  static std::shared_ptr<Transport>& transport() {
    static std::shared_ptr<Transport> of_this_process;
    return of_this_process;
  }

 private:
  std::optional<MpiProcess> process_;
  c10::intrusive_ptr<::c10d::Store> store_;
  std::optional<SocketConnection> connection_;
};

[[maybe_unused]] inline const testing::Environment* const kProcessEnvironment =
    testing::AddGlobalTestEnvironment(new ProcessEnvironment);

}  // namespace stagecraft
