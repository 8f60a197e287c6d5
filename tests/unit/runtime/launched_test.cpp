#include "launched.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/mpi.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Values = std::map<std::string, std::string>;

std::optional<Launched> launched(const Values& values) {
  return launched_by([&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  });
}

const Values kTorchrun = {{"RANK", "5"},        {"WORLD_SIZE", "8"},     {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};

Values with(Values values, const Values& more) {
  for (const auto& [name, value] : more) values[name] = value;
  return values;
}

TEST(Launched, ByNobody) {
  EXPECT_FALSE(launched({}));
  EXPECT_FALSE(launched({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  EXPECT_FALSE(launched({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}}));  // for another program
  // A script of sbatch is no task.
  EXPECT_FALSE(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NODELIST", "n[1-2]"}}));
}

TEST(Launched, ByTorchrun) {
  const auto found = launched(kTorchrun);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->by, "torchrun");
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->ranks, 8);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_ranks, 4);
  EXPECT_EQ(found->host, "a");
  EXPECT_EQ(found->port, 29500);
  EXPECT_FALSE(found->has_store);
  EXPECT_TRUE(launched(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}))->has_store);
}

TEST(Launched, CudaIsAskedForQueuesAndKernelsUnlessTheUserHas) {
  const auto is = [](const char* name, const std::string& value) { return std::getenv(name) == value; };
  for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"}) ::unsetenv(name);
  prepare_cuda();
  EXPECT_TRUE(is("CUDA_DEVICE_MAX_CONNECTIONS", "32"));
  EXPECT_TRUE(is("CUDA_MODULE_LOADING", "EAGER"));
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  prepare_cuda();
  EXPECT_TRUE(is("CUDA_MODULE_LOADING", "LAZY"));
}

TEST(Launched, WithoutALocalRankCannotChooseAmongDevices) {
  Values values = kTorchrun;
  EXPECT_NO_THROW(check_can_choose(*launched(values), 8));
  values.erase("LOCAL_RANK");
  EXPECT_NO_THROW(check_can_choose(*launched(values), 0));
  EXPECT_NO_THROW(check_can_choose(*launched(values), 1));
  EXPECT_THAT(message_of([&] { check_can_choose(*launched(values), 8); }),
              HasSubstr("rank 5 of 8 sees 8 GPUs and does not know which is its own: set LOCAL_RANK"));
  values["RANK"] = "0";
  values["WORLD_SIZE"] = "1";
  EXPECT_NO_THROW(check_can_choose(*launched(values), 8));
}

/// Each host counts the restarts of its own ranks alone, and all ranks must meet under one name.
TEST(Launched, AgainByTorchrunIsTheSameJobOnAllHosts) {
  const auto on_one = launched(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_RESTART_COUNT", "0"}}));
  const auto on_other = launched(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}));
  EXPECT_EQ(on_one->job, on_other->job);
}

TEST(Launched, BySomeOfTheVariablesIsRefused) {
  EXPECT_THAT(message_of([] {
                launched({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
              }),
              AllOf(HasSubstr("(RANK=0, WORLD_SIZE=2)"), HasSubstr("MASTER_ADDR, MASTER_PORT is not set")));
  for (const char* missing : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    Values values = kTorchrun;
    values.erase(missing);
    EXPECT_THAT(message_of([&] { launched(values); }), HasSubstr(std::string(missing) + " is not set")) << missing;
  }
  // Scripts set some of them for other programs.
  Values values = {{"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(launched(with(values, {{"MASTER_ADDR", "a"}}))->by, "mpirun");
}

TEST(Launched, AloneInEachOfSeveralTasksIsRefused) {
  const Values alone = with(kTorchrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}});
  EXPECT_EQ(launched(alone)->ranks, 1);
  EXPECT_EQ(launched(with(alone, {{"SLURM_STEP_NUM_TASKS", "1"}}))->ranks, 1);
  for (const char* tasks : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    EXPECT_THAT(message_of([&] {
                  launched(with(alone, {{tasks, "4"}}));
                }),
                HasSubstr("it is one of 4 (" + std::string(tasks) + ")"));
    // One torchrun in each, for a run of its own.
    EXPECT_EQ(launched(with(alone, {{tasks, "4"}, {"TORCHELASTIC_RUN_ID", "x"}}))->ranks, 1);
  }
}

TEST(Launched, BySlurm) {
  const Values values = {{"SLURM_PROCID", "3"},         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "1"},        {"SLURM_JOB_ID", "977"},
                         {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                         {"SLURM_NTASKS_PER_NODE", "2"}};
  const auto found = launched(values);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->by, "Slurm");
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->ranks, 4);
  EXPECT_EQ(found->local_ranks, 2);
  EXPECT_EQ(found->host, "gpu07");
  EXPECT_EQ(found->port, launched(with(values, {{"SLURM_PROCID", "0"}}))->port);  // all ranks find the same
  EXPECT_NE(found->port, launched(with(values, {{"SLURM_STEP_ID", "1"}}))->port);
  EXPECT_EQ(launched(with(values, {{"MASTER_PORT", "1234"}}))->port, 1234);
}

TEST(Launched, ByMpirun) {
  const Values values = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(launched(values)->host, "127.0.0.1");
  const Values apart = with(values, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_THAT(message_of([&] { launched(apart); }), HasSubstr("set MASTER_ADDR"));
  EXPECT_EQ(launched(with(apart, {{"MASTER_ADDR", "b"}}))->host, "b");
  EXPECT_EQ(launched({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})->ranks, 1);
}

/// Variables of this process.
class OwnVariables {
 public:
  OwnVariables() = default;
  ~OwnVariables() {
    for (const auto& [name, before] : before_) {
      if (before) {
        ::setenv(name.c_str(), before->c_str(), /*overwrite=*/1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }
  OwnVariables(const OwnVariables&) = delete;
  OwnVariables& operator=(const OwnVariables&) = delete;

  void set(const Values& values) {
    for (const auto& [name, value] : values) {
      const char* before = std::getenv(name.c_str());
      before_.try_emplace(name, before != nullptr ? std::optional<std::string>(before) : std::nullopt);
      ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

TEST(Launched, WorkersOfTorchrunAreNotRanksOfTheLauncherThatHasStartedIt) {
  OwnVariables own;
  own.set({{"TORCHELASTIC_RUN_ID", ""}, {"PMIX_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  own.set(kTorchrun);
  EXPECT_TRUE(is_started_by_mpi()) << "a script may set what torchrun sets, for other programs";
  own.set({{"TORCHELASTIC_RUN_ID", "job"}});
  EXPECT_FALSE(is_started_by_mpi());
  own.set({{"MASTER_ADDR", ""}});
  EXPECT_TRUE(is_started_by_mpi()) << "nobody says where rank 0 is";
}

TEST(Launched, ByTheMpirunOfAnotherMpiIsRefused) {
  const auto told = [](const Values& values) {
    return ranks_of_mpirun([&](const char* name) -> const char* {
      const auto found = values.find(name);
      return found == values.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(told({}), 0);
  EXPECT_EQ(told({{"SLURM_NTASKS", "8"}, {"WORLD_SIZE", "8"}}), 0);  // of an allocation, of a script
  EXPECT_EQ(told({{"OMPI_COMM_WORLD_SIZE", "8"}}), 8);
  EXPECT_EQ(told({{"PMI_SIZE", "4"}}), 4);
  EXPECT_EQ(told({{"PMIX_RANK", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}), 4);
  EXPECT_EQ(told({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}), 0);  // not for MPI
  EXPECT_EQ(
      told({{"OMPI_COMM_WORLD_SIZE", "8"}, {"PMIX_RANK", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}),
      8);
  EXPECT_EQ(told({{"OMPI_COMM_WORLD_SIZE", "8"}, {"PMI_SIZE", "1"}}), 1);  // one launcher inside the other

  EXPECT_THAT(
      message_of([] { check_not_alone(8, 1); }),
      HasSubstr("mpirun or srun has started 8 ranks, but MPI has found 1, this process alone: start the program by"));
  EXPECT_NO_THROW(check_not_alone(0, 1));
  EXPECT_NO_THROW(check_not_alone(1, 1));
  EXPECT_NO_THROW(check_not_alone(8, 8));
  EXPECT_NO_THROW(check_not_alone(1, 8));
}

TEST(Launched, RefusesWhatCannotBe) {
  EXPECT_THAT(message_of([&] {
                launched(with(kTorchrun, {{"RANK", "8"}}));
              }),
              HasSubstr("RANK is '8', and should be a number from 0 to 7"));
  EXPECT_THAT(message_of([&] {
                launched(with(kTorchrun, {{"WORLD_SIZE", "many"}}));
              }),
              HasSubstr("WORLD_SIZE is 'many'"));
  EXPECT_THAT(message_of([&] { launched(with(kTorchrun, {{"MASTER_PORT", "70000"}})); }), HasSubstr("65535"));
}

TEST(Launched, FirstHostOfAList) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("node7,node9"), "node7");
  EXPECT_EQ(first_host("node[07-09,12],other"), "node07");
  EXPECT_EQ(first_host("node[3,5]"), "node3");
  EXPECT_EQ(first_host("rack[1-2]"), "rack1");
}

}  // namespace
}  // namespace stagecraft
