// Checkpoints written beside training: what `save` was given is what the file holds, whatever happens meanwhile.

#include "stagecraft/checkpoint/checkpoints.h"

#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "checkpoint_testing.h"
#include "stagecraft/file/safetensors.h"
#include "stagecraft/runtime/rank_scope.h"
#include "stagecraft/transport/local.h"
#include "support/forwarding_channel.h"

namespace stagecraft {
namespace {

using namespace checkpoint_testing;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const Layout kSavers;

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Two parameters that take longer to write than a step takes, and a buffer.
Stage large_stage(int index, std::int64_t size = 300'000) {
  const std::string prefix = std::to_string(index) + ".";
  return {index,
          [](const StageCall& call) {
            if (call.tensor(0).numel() == 7) throw std::runtime_error("seven");
            return Value(call.tensor(0) * 2);
          },
          {{prefix + "a", at::ones({size}).set_requires_grad(true)},
           {prefix + "b", at::ones({size}).set_requires_grad(true)}},
          {{prefix + "buffer", at::ones({3}, at::kLong)}}};
}

Pipeline large_pipeline(World& world) { return {world, {large_stage(world.rank().value)}, {.microbatches = 1}}; }

void fill_all(const Pipeline& pipeline, double value) {
  const torch::NoGradGuard no_grad;
  for (const Stage& stage : pipeline.stages()) {
    for (const auto& [name, tensor] : stage.parameters()) tensor.fill_(value);
    for (const auto& [name, tensor] : stage.buffers()) tensor.fill_(value);
  }
}

void expect_all(const Pipeline& pipeline, double value) {
  for (const Stage& stage : pipeline.stages()) {
    for (const auto& [name, tensor] : stage.parameters()) {
      EXPECT_TRUE(tensor.equal(at::full_like(tensor, value))) << name;
    }
    for (const auto& [name, tensor] : stage.buffers()) EXPECT_TRUE(tensor.equal(at::full_like(tensor, value))) << name;
  }
}

TEST(Checkpoints, HaveTheValuesAtTheTimeOfSave) {
  const ScratchFolder folder;
  run_on(kSavers, [&](World& world) {
    const std::string path = shared(world, folder.path("run/of/mine"));
    Pipeline pipeline = large_pipeline(world);
    Checkpoints checkpoints(world, {.folder = path, .keep = 0});
    EXPECT_EQ(checkpoints.latest(), std::nullopt);
    EXPECT_EQ(checkpoints.load_latest(pipeline), std::nullopt);
    for (int step = 1; step <= 4; ++step) {
      fill_all(pipeline, step);
      checkpoints.save(pipeline, {.step = step});
      fill_all(pipeline, -1);
    }
    EXPECT_EQ(checkpoints.latest(), path + "/step-4.safetensors");
    EXPECT_EQ(checkpoints.load_latest(pipeline), 4);
    expect_all(pipeline, 4);
    for (int step = 1; step <= 4; ++step) {
      EXPECT_EQ(load_checkpoint(world, pipeline, path + "/step-" + std::to_string(step) + ".safetensors"), step);
      expect_all(pipeline, step);
    }
  });
}

const Layout kSaverLayouts[] = {{.schedule = "1F1B", .ranks = 2},
                                {.schedule = "GPipe", .ranks = 1},
                                {.schedule = "Interleaved1F1B", .ranks = 3, .stages_per_rank = 2},
                                {.schedule = "ZBVZeroBubble", .ranks = 2, .stages_per_rank = 2},
                                {.schedule = "1F1B", .ranks = 2, .replicas = 2}};

/// A model with a convolution whose weight is in another order in memory, which the file has not.
torch::nn::Sequential mixed_model(double seed) {
  namespace nn = torch::nn;
  nn::Conv2d convolution(nn::Conv2dOptions(3, 4, 2));
  nn::Sequential all(nn::Unflatten(nn::UnflattenOptions(1, {3, 2, 2})), convolution, nn::Flatten(), nn::Linear(4, 8),
                     nn::BatchNorm1d(8), nn::Tanh(), nn::Linear(8, 8), nn::Linear(8, 3));
  fill(*all, seed);
  convolution->weight.set_data(convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
  return all;
}

Pipeline mixed_pipeline(World& world, const Layout& layout, Shard shard, double seed) {
  return {world,
          mixed_model(seed),
          {.schedule = layout.schedule,
           .stages_per_rank = layout.stages_per_rank,
           .microbatches = 4,
           .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
           .broadcast_loss = true,
           .shard = shard}};
}

std::vector<double> train_mixed(World& world, Pipeline& pipeline, torch::optim::Optimizer& optimizer, int from,
                                int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) {
    const at::Tensor x = numbers({16, 12}, step), y = numbers({16, 3}, step + 0.5);
    losses.push_back(pipeline.step({world.share_of(x)}, {.target = world.share_of(y)}).loss());
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

TEST(Checkpoints, AreThoseThatSaveCheckpointWritesUnderEveryLayout) {
  const ScratchFolder folder;
  int run = 0;
  for (const Layout& layout : kSaverLayouts) {
    if (processes() > 0 &&
        (processes() % layout.replicas != 0 || processes() / layout.replicas * layout.stages_per_rank > 8)) {
      continue;
    }
    for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
      if (layout.replicas == 1 && shard != Shard::kNone) continue;
      const std::string name = "run" + std::to_string(run++);
      run_on(layout, [&](World& world) {
        const std::string here = shared(world, folder.path(name));
        Pipeline pipeline = mixed_pipeline(world, layout, shard, 1);
        torch::optim::Adam optimizer(pipeline.parameters(), 0.01);
        pipeline.attach(optimizer);
        train_mixed(world, pipeline, optimizer, 0, 3);
        Checkpoints checkpoints(world, {.folder = here});
        const SaveOptions options{.optimizer = &optimizer, .step = 3, .metadata = {{"by", "me"}}};
        save_checkpoint(world, pipeline, here + "/reference", options);
        checkpoints.save(pipeline, options);
        const std::vector<double> expected = train_mixed(world, pipeline, optimizer, 3, 6);
        checkpoints.wait();
        EXPECT_EQ(text_of_file(here + "/step-3.safetensors"), text_of_file(here + "/reference"))
            << "byte for byte: " << layout.schedule << ", shard " << static_cast<int>(shard);

        Pipeline resumed = mixed_pipeline(world, layout, shard, 30);
        torch::optim::Adam second(resumed.parameters(), 0.01);
        resumed.attach(second);
        EXPECT_EQ(checkpoints.load_latest(resumed, {.optimizer = &second}), 3);
        EXPECT_EQ(train_mixed(world, resumed, second, 3, 6), expected) << "bit for bit";
      });
    }
  }
}

TEST(Checkpoints, TheLastAreKeptAndWhatAKilledRunLeftIsRemoved) {
  const ScratchFolder folder;
  run_on(kSavers, [&](World& world) {
    const std::string path = shared(world, folder.path("."));
    const bool is_here = world.world_rank().value == 0;
    if (is_here) {
      folder.write(".stagecraft-a1b2c3", "half a checkpoint");
      folder.write(".stagecraft-of-mine", "another file");
      folder.write("step-x.safetensors", "another file");
    }
    world.everyone().barrier();
    Pipeline pipeline = large_pipeline(world);
    Checkpoints checkpoints(world, {.folder = path, .keep = 2});
    EXPECT_EQ(checkpoints.latest(), std::nullopt);
    for (const int step : {5, 9, 10, 100}) checkpoints.save(pipeline, {.step = step});
    checkpoints.wait();
    if (is_here) {
      EXPECT_THAT(folder.names(), ElementsAre(".stagecraft-of-mine", "step-10.safetensors", "step-100.safetensors",
                                              "step-x.safetensors"));
    }
    world.everyone().barrier();
    checkpoints.save(pipeline, {.step = 100});  // once more
    EXPECT_EQ(checkpoints.load_latest(pipeline), 100);
  });
}

TEST(Checkpoints, WithoutBackgroundAreThereWhenSaveReturns) {
  const ScratchFolder folder;
  run_on(kSavers, [&](World& world) {
    const std::string path = shared(world, folder.path("run"));
    Pipeline pipeline = large_pipeline(world);
    Checkpoints checkpoints(world, {.folder = path, .background = false});
    checkpoints.save(pipeline, {.step = 1});
    EXPECT_EQ(::access((path + "/step-1.safetensors").c_str(), F_OK), 0);
    world.everyone().barrier();  // before the folder is gone
  });
}

TEST(Checkpoints, AnErrorInTheBackgroundIsThrownOnAllRanksByTheNextCall) {
  const ScratchFolder folder;
  Thrown by_save, by_wait;
  run_on(kSavers, [&](World& world) {
    const std::string path = shared(world, folder.path("run"));
    Pipeline pipeline = large_pipeline(world);
    Checkpoints checkpoints(world, {.folder = path});
    checkpoints.save(pipeline, {.step = 1});
    checkpoints.wait();
    const auto block = [&](int step, bool blocked) {  // with a folder of that name
      const std::string file = path + "/step-" + std::to_string(step) + ".safetensors";
      if (world.world_rank().value == 0) {
        EXPECT_EQ(blocked ? ::mkdir(file.c_str(), 0777) : ::rmdir(file.c_str()), 0);
      }
      world.everyone().barrier();
    };
    block(2, true);
    checkpoints.save(pipeline, {.step = 2});
    by_save.expect(world, [&] { checkpoints.save(pipeline, {.step = 3}); });
    checkpoints.wait();  // it is thrown once
    block(2, false);
    block(3, true);
    checkpoints.save(pipeline, {.step = 3});
    by_wait.expect(world, [&] { checkpoints.wait(); });
    block(3, false);
    fill_all(pipeline, 4);
    checkpoints.save(pipeline, {.step = 4});
    checkpoints.wait();
    EXPECT_EQ(load_checkpoint(world, pipeline, path + "/step-1.safetensors"), 1) << "it is as it was";
    EXPECT_EQ(load_checkpoint(world, pipeline, path + "/step-4.safetensors"), 4);
    expect_all(pipeline, 4);
  });
  const auto says = [](const std::string& file) {
    return Each(AllOf(
        HasSubstr(file + ": it was to be written in the background, and was not: cannot write it: Is a directory"),
        HasSubstr("older checkpoints are as they were")));
  };
  EXPECT_THAT(by_save.messages(), says("step-2.safetensors"));
  EXPECT_THAT(by_wait.messages(), says("step-3.safetensors"));
}

/// Loses the first two bundles that come, as a rank without room for them does.
class CrampedChannel : public ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  std::optional<Message> take(RankId from, const Tag& tag) override {
    std::optional<Message> message = ForwardingChannel::take(from, tag);
    const bool is_bundle = message && message->tensors.size() == 1 && message->tensors[0].defined() &&
                           message->tensors[0].scalar_type() == at::kByte;
    if (is_bundle && ++bundles_ <= 2) throw std::runtime_error("there is no room for it");
    return message;
  }
  [[nodiscard]] int bundles() const { return bundles_; }

 private:
  std::atomic<int> bundles_ = 0;
};

TEST(CheckpointsOnThreads, WithoutRoomForSomeBundlesTheOthersAreDropped) {
  const ScratchFolder folder;
  LocalFabric fabric(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const RankScope scope(at::kCPU, 1);
      auto own = std::make_unique<CrampedChannel>(fabric.channel(RankId(r)));
      const CrampedChannel& channel = *own;
      World world(std::make_shared<Transport>(std::move(own)), at::kCPU, kPatience);
      // Each parameter is a bundle, and the buffer is another one.
      Pipeline pipeline(world, {large_stage(r, 4'300'000)}, {.microbatches = 1});
      Checkpoints checkpoints(world, {.folder = folder.path("run")});
      checkpoints.save(pipeline, {.step = 1});
      EXPECT_THAT(message_of([&] { checkpoints.wait(); }), HasSubstr("there is no room for it"));
      if (r == 0) {
        EXPECT_EQ(channel.bundles(), 3) << "a bundle that nobody takes stays for good";
      }
      checkpoints.save(pipeline, {.step = 2});
      EXPECT_EQ(checkpoints.latest(), folder.path("run/step-2.safetensors"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Checkpoints, AStepThatFailsMeanwhileDoesNoHarm) {
  const ScratchFolder folder;
  run_on(kSavers, [&](World& world) {
    const std::string path = shared(world, folder.path("run"));
    Pipeline pipeline = large_pipeline(world);
    Checkpoints checkpoints(world, {.folder = path});
    for (int step = 1; step <= 3; ++step) {
      fill_all(pipeline, step);
      checkpoints.save(pipeline, {.step = step});
      EXPECT_THAT(message_of([&] { pipeline.eval({at::ones({7})}); }), HasSubstr("seven"));
      EXPECT_EQ(message_of([&] { pipeline.eval({at::ones({2})}); }), "nothing was thrown");
      fill_all(pipeline, -1);
      EXPECT_EQ(checkpoints.load_latest(pipeline), step);
      expect_all(pipeline, step);
    }
  });
}

TEST(CheckpointsOnThreads, ARankThatEndsInTheMiddleEndsTheOthers) {
  const ScratchFolder folder;
  for (const int culprit : {0, 1}) {
    const std::string path = folder.path("run" + std::to_string(culprit));
    EXPECT_THAT(message_of([&] {
                  run_on(kSavers, [&](World& world) {
                    Pipeline pipeline = large_pipeline(world);
                    Checkpoints checkpoints(world, {.folder = path});
                    checkpoints.save(pipeline, {.step = 1});
                    if (world.world_rank().value == culprit) throw std::runtime_error("that was it");
                    checkpoints.save(pipeline, {.step = 2});
                  });
                }),
                HasSubstr("that was it"));
    // All ranks had given what they have: rank 0 completes the file before it ends.
    EXPECT_GT(safetensors::Reader(path + "/step-1.safetensors").entries().size(), 3U);
  }
}

TEST(Checkpoints, ALaterOneInTheFolderIsNotPassedOverInSilence) {
  const ScratchFolder folder;
  Thrown later, negative, different;
  run_on(kSavers, [&](World& world) {
    const std::string path = shared(world, folder.path("run"));
    Pipeline pipeline = large_pipeline(world);
    {
      Checkpoints checkpoints(world, {.folder = path});
      checkpoints.save(pipeline, {.step = 20});
    }
    world.everyone().barrier();
    Checkpoints checkpoints(world, {.folder = path});
    later.expect(world, [&] { checkpoints.save(pipeline, {.step = 10}); });
    negative.expect(world, [&] { checkpoints.save(pipeline, {.step = -1}); });
    if (world.everyone().size() > 1) {
      different.expect(world, [&] { checkpoints.save(pipeline, {.step = 30 + world.world_rank().value}); });
    }
    checkpoints.save(pipeline, {.step = 21});
  });
  EXPECT_THAT(later.messages(), Each(AllOf(HasSubstr("step-20.safetensors: it is of a later step than 10"),
                                           HasSubstr("remove it, or give this run another folder"))));
  EXPECT_THAT(negative.messages(), Each(HasSubstr("the step is -1: give 0 or more")));
  EXPECT_THAT(different.messages(), Each(HasSubstr("rank 1 saves step 31, but rank 0 saves step 30")));
}

TEST(CheckpointsOnThreads, FoldersThatCannotBeUsed) {
  const ScratchFolder folder;
  folder.write("file", "");
  Thrown none, negative, file, taken;
  run_on(kSavers, [&](World& world) {
    Pipeline pipeline = large_pipeline(world);
    none.expect(world, [&] { Checkpoints(world, {}); });
    negative.expect(world, [&] { Checkpoints(world, {.folder = folder.path("run"), .keep = -world.rank().value}); });
    file.expect(world, [&] { Checkpoints(world, {.folder = folder.path("file")}); });
    Checkpoints first(world, {.folder = folder.path("run")});
    Checkpoints second(world, {.folder = folder.path("run")});
    first.save(pipeline, {.step = 1});
    first.wait();
    EXPECT_EQ(second.load_latest(pipeline), 1) << "whoever reads may";
    taken.expect(world, [&] { second.save(pipeline, {.step = 2}); });
  });
  EXPECT_THAT(none.messages(), Each(HasSubstr("folder is empty")));
  EXPECT_THAT(negative.messages(), Each(HasSubstr("keep is -1: give 0 (all) or more")));
  EXPECT_THAT(file.messages(), Each(AllOf(HasSubstr("/file: "), Not(HasSubstr("rank ")))));
  EXPECT_THAT(taken.messages(), Each(HasSubstr("another run saves its checkpoints here")));
}

}  // namespace
}  // namespace stagecraft
