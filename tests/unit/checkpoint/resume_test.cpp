// A run that is saved and loaded continues as if it had not stopped.

#include "checkpoint_testing.h"
#include "stagecraft/file/safetensors.h"

namespace stagecraft {
namespace {

using namespace checkpoint_testing;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
namespace optim = torch::optim;

struct OptimizerCase {
  const char* name;
  std::unique_ptr<optim::Optimizer> (*make)(const std::vector<at::Tensor>&);
};
void PrintTo(const OptimizerCase& c, std::ostream* out) { *out << c.name; }

template <typename Optimizer, typename Options>
std::unique_ptr<optim::Optimizer> made(const std::vector<at::Tensor>& parameters, const Options& options) {
  return std::make_unique<Optimizer>(parameters, options);
}
using Tensors = const std::vector<at::Tensor>&;

const OptimizerCase kOptimizers[] = {
    {"SGD", [](Tensors p) { return made<optim::SGD>(p, optim::SGDOptions(0.05)); }},
    {"Momentum", [](Tensors p) { return made<optim::SGD>(p, optim::SGDOptions(0.05).momentum(0.9)); }},
    {"Adam", [](Tensors p) { return made<optim::Adam>(p, optim::AdamOptions(0.01)); }},
    {"Amsgrad", [](Tensors p) { return made<optim::Adam>(p, optim::AdamOptions(0.01).amsgrad(true)); }},
    {"AdamW", [](Tensors p) { return made<optim::AdamW>(p, optim::AdamWOptions(0.01)); }},
    {"RMSprop",
     [](Tensors p) { return made<optim::RMSprop>(p, optim::RMSpropOptions(0.01).momentum(0.5).centered(true)); }},
    {"Adagrad", [](Tensors p) { return made<optim::Adagrad>(p, optim::AdagradOptions(0.05)); }},
};

class Resume : public testing::TestWithParam<OptimizerCase> {};

TEST_P(Resume, GivesTheLossesOfARunThatNeverStopped) {
  const ScratchFolder folder;
  const Layout layout{.schedule = "ZBVZeroBubble", .stages_per_rank = 2};
  Models whole(layout, 0, 0.3), before(layout, 0, 0.3), after(layout, 50, 0.3);
  run_on(layout, [&](World& world) {
    const std::string path = shared(world, folder.path("model.safetensors"));
    Pipeline never_stopped = whole.pipeline(world);
    auto optimizer = GetParam().make(never_stopped.parameters());
    const std::vector<double> expected = train(world, never_stopped, *optimizer, 0, 6);
    {
      Pipeline pipeline = before.pipeline(world);
      auto first = GetParam().make(pipeline.parameters());
      EXPECT_EQ(train(world, pipeline, *first, 0, 3), std::vector(expected.begin(), expected.begin() + 3));
      save_checkpoint(world, pipeline, path, {.optimizer = first.get(), .step = 3});
    }
    Pipeline pipeline = after.pipeline(world);
    auto second = GetParam().make(pipeline.parameters());
    train(world, pipeline, *second, 0, 1);  // loading replaces what it has learnt
    EXPECT_EQ(load_checkpoint(world, pipeline, path, {.optimizer = second.get()}), 3);
    EXPECT_EQ(pipeline.steps(), 3U);
    EXPECT_EQ(train(world, pipeline, *second, 3, 6), std::vector(expected.begin() + 3, expected.end()))
        << "bit for bit";
    const NamedTensors weights = pipeline.named_parameters(), others = never_stopped.named_parameters();
    for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(weights[i].second.equal(others[i].second));
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Resume, testing::ValuesIn(kOptimizers),
                         [](const auto& test) { return std::string(test.param.name); });

const Layout kLayouts[] = {{.schedule = "1F1B", .ranks = 2},
                           {.schedule = "GPipe", .ranks = 1},
                           {.schedule = "1F1B", .ranks = 3},
                           {.schedule = "Interleaved1F1B", .ranks = 4, .stages_per_rank = 2},
                           {.schedule = "ZBVZeroBubble", .ranks = 2, .stages_per_rank = 2},
                           {.schedule = "1F1B", .ranks = 2, .replicas = 2}};

TEST(Checkpoint, GoesFromAnyLayoutToAnyOther) {
  const ScratchFolder folder;
  std::string first_file;
  std::vector<double> first_losses;
  for (Layout from : kLayouts) {
    if (processes() > 0 && processes() % 2 != 0 && from.replicas == 2) continue;
    if (processes() > 0 && (processes() / from.replicas) * from.stages_per_rank > 8) continue;
    Models other(from, 20);
    std::vector<double> losses;
    std::mutex mutex;
    run_on(from, [&](World& world) {
      const std::string path = shared(world, folder.path("model.safetensors"));
      const std::string again = shared(world, folder.path("again.safetensors"));
      Pipeline pipeline = other.pipeline(world);
      optim::Adam optimizer(pipeline.parameters(), 0.01);
      if (first_file.empty()) {
        train(world, pipeline, optimizer, 0, 3);
        save_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .step = 3, .metadata = {{"by", "me"}}});
      }
      EXPECT_EQ(load_checkpoint(world, pipeline, path, {.optimizer = &optimizer}), 3);
      save_checkpoint(world, pipeline, again, {.optimizer = &optimizer, .step = 3, .metadata = {{"by", "me"}}});
      const std::vector<double> here = train(world, pipeline, optimizer, 3, 6);
      const std::lock_guard lock(mutex);
      losses = here;
    });
    if (first_file.empty()) {
      first_file = processes() > 0 ? "-" : folder.text("model.safetensors");
      first_losses = losses;
    }
    if (folder.has("again.safetensors")) {  // on rank 0
      EXPECT_EQ(folder.text("again.safetensors"), folder.text("model.safetensors")) << "byte for byte: " << from.ranks;
    }
    if (from.replicas > 1) continue;  // other statistics of batch normalisation
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], first_losses[i], 1e-5) << from.schedule;
  }
}

TEST(Checkpoint, WithoutOptimizerIsWeightsAndBuffersUnderTheirNames) {
  const ScratchFolder folder;
  const Layout layout;
  Models models(layout, 1);
  run_on(layout, [&](World& world) {
    const std::string path = shared(world, folder.path("weights.safetensors"));
    Pipeline pipeline = models.pipeline(world);
    save_checkpoint(world, pipeline, path, {.metadata = {{"note", "hello"}}});
    const safetensors::Reader reader(path);
    std::vector<std::string> names;
    for (const auto& item : reader.entries()) names.push_back(item.name);
    std::sort(names.begin(), names.end());
    EXPECT_THAT(names,
                ElementsAre("0.bias", "0.weight", "1.bias", "1.num_batches_tracked", "1.running_mean", "1.running_var",
                            "1.weight", "3.bias", "3.weight", "5.bias", "5.weight", "7.bias", "7.weight"));
    EXPECT_EQ(reader.find("3.weight")->text(), "F32 [8, 8]");
    EXPECT_EQ(reader.find("1.num_batches_tracked")->text(), "I64 []");
    EXPECT_EQ(reader.metadata().at("note"), "hello");
    EXPECT_EQ(reader.metadata().at("format"), "pt");
    EXPECT_EQ(load_checkpoint(world, pipeline, path), 0);
  });
}

TEST(Checkpoint, LoadedWithoutOptimizerLeavesItsStateOut) {
  const ScratchFolder folder;
  const Layout layout;
  Models models(layout, 1);
  run_on(layout, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    Pipeline pipeline = models.pipeline(world);
    optim::Adam optimizer(pipeline.parameters(), 0.01);
    train(world, pipeline, optimizer, 0, 1);
    save_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .step = 9});
    EXPECT_EQ(load_checkpoint(world, pipeline, path), 9);
  });
}

/// One of two stages that share the embedding; each also has a table that is not saved.
Stage tied_stage(int index, const at::Tensor& shared_weight, const at::Tensor& table) {
  return {index,
          [=](const StageCall& call) { return Value(at::matmul(call.tensor(0), shared_weight)); },
          {{"embedding", shared_weight}},
          {{"mask", at::ones({2}, at::kBool)}, {"table." + std::to_string(index), table}},
          {},
          {.not_saved = {"table." + std::to_string(index)}}};
}

TEST(Checkpoint, ATiedParameterIsThereOnceAndLoadedByAll) {
  const ScratchFolder folder;
  const Layout layout;
  run_on(layout, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    const at::Tensor weight = numbers({3, 3}, 1).set_requires_grad(true);
    const at::Tensor table = numbers({4}, world.rank().value);
    Pipeline pipeline(world, {tied_stage(world.rank().value, weight, table)}, {.microbatches = 1});
    save_checkpoint(world, pipeline, path);
    const safetensors::Reader reader(path);
    ASSERT_EQ(reader.entries().size(), 2U);
    EXPECT_EQ(reader.find("embedding")->text(), "F32 [3, 3]");
    EXPECT_EQ(reader.find("mask")->text(), "BOOL [2]");
    weight.detach().zero_();
    table.zero_();
    load_checkpoint(world, pipeline, path);
    EXPECT_TRUE(weight.equal(numbers({3, 3}, 1)));
    EXPECT_TRUE(table.equal(at::zeros({4}))) << "not saved";
  });
}

TEST(Checkpoint, EveryTypeAndShape) {
  const ScratchFolder folder;
  const Layout layout;
  run_on(layout, [&](World& world) {
    const std::string path = shared(world, folder.path("f"));
    const std::string prefix = std::to_string(world.rank().value) + ".";
    const auto make = [&](double seed) {
      NamedTensors all;
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong,
                                        at::kShort, at::kChar, at::kByte, at::kBool, at::kComplexFloat}) {
        all.emplace_back(prefix + c10::toString(type), (numbers({2, 3}, seed) * 100).abs().to(type));
      }
      all.emplace_back(prefix + "scalar", at::scalar_tensor(seed, at::kDouble));
      all.emplace_back(prefix + "none", at::zeros({3, 0}));
      all.emplace_back(prefix + "turned", numbers({3, 5}, seed).t());
      all.emplace_back(prefix + "ä \" \\", at::full({1}, seed));
      return all;
    };
    NamedTensors tensors = make(1);
    Pipeline pipeline(world,
                      {Stage(
                          world.rank().value, [](const StageCall& c) { return c.arguments[0]; }, {}, tensors)},
                      {.microbatches = 1});
    save_checkpoint(world, pipeline, path);
    const at::Tensor turned = tensors[13].second;
    for (const auto& [name, tensor] : tensors) tensor.zero_();
    load_checkpoint(world, pipeline, path);
    const NamedTensors expected = make(1);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(tensors[i].second.equal(expected[i].second)) << tensors[i].first;
    }
    EXPECT_FALSE(turned.is_contiguous());
  });
}

}  // namespace
}  // namespace stagecraft
