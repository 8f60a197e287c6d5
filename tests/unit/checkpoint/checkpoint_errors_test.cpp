// Failures to save or load: one error that lists all faults, on all ranks, and nothing is changed.

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <random>
#include <sstream>

#include "checkpoint_testing.h"
#include "stagecraft/file/safetensors.h"

namespace stagecraft {
namespace {

using namespace checkpoint_testing;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const Layout kTwoRanks;

/// Writes a file of zeros.
void write_zeros(const std::string& path, std::vector<safetensors::Entry> entries,
                 const safetensors::Metadata& metadata = {}) {
  safetensors::Writer writer(path, std::move(entries), metadata);
  for (const safetensors::Entry& entry : writer.entries()) {
    writer.write(entry, std::string(entry.bytes, '\0').data(), entry.bytes);
  }
  writer.commit();
}

/// A stage with two parameters, full of ones.
Stage small_stage(int index, const std::string& prefix) {
  return {index,
          [](const StageCall& call) { return call.arguments[0]; },
          {{prefix + "weight", at::ones({2, 3})}, {prefix + "bias", at::ones({3}, at::kDouble)}}};
}

Pipeline small_pipeline(World& world) {
  return {world, {small_stage(world.rank().value, std::to_string(world.rank().value) + ".")}, {.microbatches = 1}};
}

TEST(CheckpointErrors, EverythingThatDoesNotFitAtOnceAndNothingIsChanged) {
  const ScratchFolder folder;
  Thrown thrown;
  run_on(kTwoRanks, [&](World& world) {
    const std::string path = shared(world, folder.path("other.safetensors"));
    if (world.world_rank().value == 0) {
      write_zeros(path,
                  {{"0.weight", "F32", {3, 2}},
                   {"0.bias", "F32", {3}},
                   {"1.bias", "F64", {3}},
                   {"extra", "U8", {1}},
                   {"optimizer/exp_avg/0.weight", "F32", {2, 3}}},
                  {{"stagecraft.step", "three"}});
    }
    world.everyone().barrier();
    Pipeline pipeline = small_pipeline(world);
    thrown.expect(world, [&] { load_checkpoint(world, pipeline, path); });
    for (const auto& [name, tensor] : pipeline.named_parameters()) {
      EXPECT_TRUE(tensor.equal(at::ones_like(tensor))) << name;
    }
  });
  EXPECT_THAT(
      thrown.messages(),
      Each(AllOf(HasSubstr("other.safetensors: it is not a checkpoint of this model: "),
                 HasSubstr("'0.weight' is F32 [3, 2], but the model has F32 [2, 3]"),
                 HasSubstr("'0.bias' is F32 [3], but the model has F64 [3]"), HasSubstr("'1.weight' is missing"),
                 HasSubstr("'extra' is unexpected"), HasSubstr("stagecraft.step is 'three', not a whole number"),
                 Not(HasSubstr("exp_avg")), Not(HasSubstr("'1.bias'")), Not(HasSubstr("\n")))));
}

TEST(CheckpointErrors, FilesThatCannotBeRead) {
  const ScratchFolder folder;
  Thrown missing, broken;
  run_on(kTwoRanks, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    Pipeline pipeline = small_pipeline(world);
    missing.expect(world, [&] { load_checkpoint(world, pipeline, path); });
    if (world.world_rank().value == 0) folder.write("f", "not a safetensors file");
    world.everyone().barrier();
    broken.expect(world, [&] { load_checkpoint(world, pipeline, path); });
    EXPECT_THROW(load_checkpoint(world, pipeline, path), FileError);
  });
  EXPECT_THAT(missing.messages(), Each(AllOf(HasSubstr("/f: cannot read it: No such file"), Not(HasSubstr("rank ")))));
  EXPECT_THAT(broken.messages(), Each(HasSubstr("not a sound safetensors file")));
}

TEST(CheckpointErrorsOnThreads, AFileThatOnlySomeRanksFind) {
  const ScratchFolder folder;
  write_zeros(folder.path("f"), {{"0.weight", "F32", {2, 3}}});
  Thrown thrown;
  run_on(kTwoRanks, [&](World& world) {
    Pipeline pipeline = small_pipeline(world);
    const std::string path = world.rank().value == 0 ? folder.path("f") : folder.path("g");
    thrown.expect(world, [&] { load_checkpoint(world, pipeline, path); });
  });
  EXPECT_THAT(thrown.messages(), Each(AllOf(HasSubstr("rank 1: cannot read it"), HasSubstr("all must find it"))));
}

TEST(CheckpointErrors, NamesThatMeanDifferentThings) {
  const ScratchFolder folder;
  Thrown values, shapes;
  run_on(kTwoRanks, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    const int rank = world.rank().value;
    Stage without_prefix = small_stage(rank, "");
    without_prefix.parameters()[0].second.fill_(rank);
    Pipeline pipeline(world, {without_prefix}, {.microbatches = 1});
    values.expect(world, [&] { save_checkpoint(world, pipeline, path); });
    Pipeline other(world,
                   {Stage(rank, [](const StageCall& c) { return c.arguments[0]; }, {{"w", at::ones({1 + rank})}})},
                   {.microbatches = 1});
    shapes.expect(world, [&] { save_checkpoint(world, other, path); });
  });
  EXPECT_THAT(values.messages(), Each(AllOf(HasSubstr("'weight' is different tensors in different stages"),
                                            HasSubstr("give make_stage a prefix"), Not(HasSubstr("'bias'")))));
  EXPECT_THAT(shapes.messages(), Each(HasSubstr("'w' is different tensors")));
  EXPECT_TRUE(folder.names().empty());
}

TEST(CheckpointErrors, WhatAFileCannotHold) {
  const ScratchFolder folder;
  Thrown thrown;
  run_on(kTwoRanks, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    const std::string name = std::to_string(world.rank().value);
    Pipeline pipeline(world,
                      {Stage(world.rank().value, [](const StageCall& c) { return c.arguments[0]; },
                             {{name, at::ones({1}, at::kComplexDouble)}, {"optimizer/" + name, at::ones({1})}})},
                      {.microbatches = 1});
    thrown.expect(world, [&] { save_checkpoint(world, pipeline, path, {.metadata = {{"stagecraft.step", "1"}}}); });
  });
  EXPECT_THAT(thrown.messages(),
              Each(AllOf(HasSubstr("'0' is CPUComplexDoubleType"), HasSubstr("'1' is CPUComplexDoubleType"),
                         HasSubstr("'optimizer/0' is a name for optimizer state"), HasSubstr("'stagecraft.step'"))));
}

TEST(CheckpointErrors, OptimizersThatDoNotFit) {
  const ScratchFolder folder;
  Thrown unknown, strangers, other_kind, none, amsgrad;
  Models models(kTwoRanks, 0);
  run_on(kTwoRanks, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    Pipeline pipeline = models.pipeline(world);
    torch::optim::LBFGS lbfgs(pipeline.parameters());
    unknown.expect(world, [&] { save_checkpoint(world, pipeline, path, {.optimizer = &lbfgs}); });
    torch::optim::SGD elsewhere(std::vector<at::Tensor>{at::ones({1}).set_requires_grad(true)}, 0.1);
    strangers.expect(world, [&] { save_checkpoint(world, pipeline, path, {.optimizer = &elsewhere}); });

    torch::optim::Adam adam(pipeline.parameters(), 0.1);
    none.expect(world, [&] {
      save_checkpoint(world, pipeline, path);
      load_checkpoint(world, pipeline, path, {.optimizer = &adam});
    });
    train(world, pipeline, adam, 0, 1);
    save_checkpoint(world, pipeline, path, {.optimizer = &adam});
    torch::optim::SGD sgd(pipeline.parameters(), 0.1);
    other_kind.expect(world, [&] { load_checkpoint(world, pipeline, path, {.optimizer = &sgd}); });
    torch::optim::Adam more(pipeline.parameters(), torch::optim::AdamOptions(0.1).amsgrad(true));
    amsgrad.expect(world, [&] { load_checkpoint(world, pipeline, path, {.optimizer = &more}); });
  });
  EXPECT_THAT(unknown.messages(), Each(HasSubstr("use SGD, Adam, AdamW, RMSprop or Adagrad, or save without it")));
  EXPECT_THAT(strangers.messages(), Each(HasSubstr("make it from pipeline.parameters()")));
  EXPECT_THAT(none.messages(),
              Each(HasSubstr("it has no optimizer state: take a file that has it, or load without an optimizer")));
  EXPECT_THAT(other_kind.messages(),
              Each(AllOf(HasSubstr("/f: its optimizer state is of 'Adam', but the optimizer is SGD: use the same kind, "
                                   "or load without an optimizer"),
                         Not(HasSubstr("not a checkpoint of this model")), Not(HasSubstr("unexpected")))));
  EXPECT_THAT(amsgrad.messages(), Each(HasSubstr("'optimizer/max_exp_avg_sq/0.weight' is missing")));
}

TEST(CheckpointErrors, AFlippedBitOfTheDataIsRefusedOnAllRanks) {
  constexpr int kTrials = 25;
  const ScratchFolder folder;
  Models models(kTwoRanks, 0);
  run_on(kTwoRanks, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    const std::string seed = shared(world, std::to_string(std::random_device()()));
    Pipeline pipeline = models.pipeline(world);
    torch::optim::Adam adam(pipeline.parameters(), 0.1);
    train(world, pipeline, adam, 0, 1);
    save_checkpoint(world, pipeline, path, {.optimizer = &adam});
    std::string good;
    std::size_t begin = 0;
    if (world.world_rank().value == 0) {
      std::ostringstream text;
      text << std::ifstream(path, std::ios::binary).rdbuf();
      good = text.str();
      begin = safetensors::Reader(path).entries().front().begin;
    }
    std::mt19937_64 random(std::stoull(seed));
    for (int trial = 0; trial < kTrials; ++trial) {
      if (world.world_rank().value == 0) {
        const std::size_t at = begin + random() % (good.size() - begin);
        std::string bytes = good;
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        std::ofstream(path, std::ios::binary) << bytes;
      }
      world.everyone().barrier();
      std::string message;
      try {
        load_checkpoint(world, pipeline, path, {.optimizer = &adam});
      } catch (const FileError& error) {
        message = error.what();
      }
      EXPECT_THAT(message,
                  AllOf(HasSubstr("/f: tensor '"), HasSubstr("' is damaged"), HasSubstr("fetch the file again")))
          << "trial " << trial << ", seed " << seed;
      world.everyone().barrier();
    }
    if (world.world_rank().value == 0) std::ofstream(path, std::ios::binary) << good;
    world.everyone().barrier();
    EXPECT_NO_THROW(load_checkpoint(world, pipeline, path, {.optimizer = &adam}));
  });
}

TEST(CheckpointErrorsOnThreads, AFullDiskIsAnErrorOnAllRanksAndLeavesTheOldFile) {
  const ScratchFolder folder;
  folder.write("f", "old");
  Thrown thrown;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{100'000, before.rlim_max};
  run_on(kTwoRanks, [&](World& world) {
    const std::string name = std::to_string(world.rank().value);
    Pipeline pipeline(world,
                      {Stage(world.rank().value, [](const StageCall& c) { return c.arguments[0]; },
                             {{name + ".a", at::ones({20'000})}, {name + ".b", at::ones({20'000})}})},
                      {.microbatches = 1});
    if (world.is_first()) ::setrlimit(RLIMIT_FSIZE, &full);
    world.everyone().barrier();
    thrown.expect(world, [&] { save_checkpoint(world, pipeline, folder.path("f")); });
    EXPECT_EQ(folder.text("f"), "old");
    world.everyone().barrier();
    if (world.is_first()) ::setrlimit(RLIMIT_FSIZE, &before);
    world.everyone().barrier();
    save_checkpoint(world, pipeline, folder.path("f"));
    load_checkpoint(world, pipeline, folder.path("f"));
  });
  ::signal(SIGXFSZ, handler);
  EXPECT_THAT(thrown.messages(), Each(HasSubstr("/f: cannot write it: File too large: free some space")));
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(CheckpointErrors, APlaceThatCannotBeWritten) {
  const ScratchFolder folder;
  Thrown thrown;
  run_on(kTwoRanks, [&](World& world) {
    const std::string path = shared(world, folder.path("no/such/f"));
    Pipeline pipeline = small_pipeline(world);
    thrown.expect(world, [&] { save_checkpoint(world, pipeline, path); });
  });
  EXPECT_THAT(thrown.messages(), Each(HasSubstr("create its folder first")));
}

}  // namespace
}  // namespace stagecraft
