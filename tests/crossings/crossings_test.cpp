// Random combinations of features, each compared with one device. Started alone, the program runs ranks as threads;
// under mpirun, as processes. Steps that are graphs are compared with eager ones too.
//
//   STAGECRAFT_TEST_DEVICE        cpu or cuda
//   STAGECRAFT_CROSSINGS_SECONDS  how long to go on (10 unless set); a run of processes goes on for a tenth of it
//   STAGECRAFT_CROSSINGS_SEED     runs the one case of this seed, as a failure names it
//   STAGECRAFT_CROSSINGS_FIRST    begins with the case of this seed, and says what every case is
//   STAGECRAFT_CROSSINGS_WITHOUT  leaves features out of it, such as "dropout,recompute": see leave_out

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "one_device.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/data_parallel/masters.h"
#include "stagecraft/runtime/rank_scope.h"
#include "support/processes.h"
#include "support/scratch_folder.h"

namespace stagecraft::crossings {
namespace {

/// Thrown on purpose, once.
class Saboteur {
 public:
  Saboteur(const Case& drawn, int layout) : case_(drawn), layout_(layout) {}

  /// Whether this step is to fail.
  [[nodiscard]] bool is_due() const {
    const auto& failure = case_.failure;
    return failure && !done && failure->layout == layout_ && failure->step == step;
  }

  void at_forward(const StageCall& call, int replica) const {
    if (!is_due() || replica != 0) return;
    const auto& failure = case_.failure;
    if (call.stage.value != failure->stage || call.microbatch.value != failure->microbatch) return;
    if (failure->is_std) throw std::runtime_error("on purpose");
    throw 7;
  }

  int step = 0;
  bool done = false;

 private:
  const Case& case_;
  int layout_;
};

std::vector<Edge> edges_of(const Traits& traits, const std::vector<std::int64_t>& begins) {
  const auto stages = static_cast<int>(begins.size()) - 1;
  std::vector<Edge> edges;
  if (!traits.skip) return edges;
  for (int stage = 1; stage < stages; ++stage) {
    edges.push_back({.from = StageId(stage - 1), .output = 0, .to = StageId(stage), .argument = 0});
    bool takes = false;
    for (auto layer = begins[static_cast<std::size_t>(stage)]; layer < begins[static_cast<std::size_t>(stage) + 1];
         ++layer) {
      takes |= traits.takes_skip(static_cast<int>(layer));
    }
    if (takes) edges.push_back({.from = StageId(0), .output = 1, .to = StageId(stage), .argument = 1});
  }
  return edges;
}

Recompute recompute_of(const Case& drawn) {
  switch (drawn.recomputed) {
    case Case::Recomputed::kNothing:
      break;
    case Case::Recomputed::kStage:
      return Recompute::stage();
    case Case::Recomputed::kLayers:
      return Recompute::every(1 + static_cast<std::int64_t>(drawn.seed % 3));
    case Case::Recomputed::kSomeLayers:
      return Recompute::where([](const std::string& name) { return (name.back() - '0') % 3 != 1; });
  }
  return {};
}

Precision precision_of(const Case& drawn) {
  Precision precision;
  if (drawn.mixed == Case::Mixed::kCompute) precision.compute = at::kFloat;
  if (drawn.mixed == Case::Mixed::kParameters) precision.parameters = at::kDouble;
  return precision;
}

/// One rank of one layout: goes on from the checkpoint of the layout before, and writes one for the layout after.
class RankOfLayout {
 public:
  RankOfLayout(World& world, const Case& drawn, bool graph, int which, const std::string& checkpoint)
      : world_(world),
        case_(drawn),
        graph_(graph),
        which_(which),
        layout_(drawn.layouts[static_cast<std::size_t>(which)]),
        checkpoint_(checkpoint),
        saboteur_(drawn, which) {}

  /// Returns the losses, and the weights of this rank.
  Outcome train() {
    Outcome outcome;
    Pipeline pipeline = make_pipeline();
    const auto optimizer = make_optimizer(case_, pipeline.parameters());
    pipeline.attach(*optimizer);
    if (which_ > 0) load_checkpoint(world_, pipeline, checkpoint_, {.optimizer = optimizer.get()});
    const int first = which_ * case_.steps_per_layout();
    EXPECT_EQ(pipeline.steps(), static_cast<std::uint64_t>(first));
    for (int update = 0; update < case_.updates; ++update) {
      std::vector<double> losses;
      while (!accumulate(pipeline, first, update, losses)) {
        optimizer->zero_grad();
        pipeline.set_steps(static_cast<std::uint64_t>(first + update * case_.accumulated));
        losses.clear();
      }
      if (case_.clips) pipeline.clip_gradient_norm(kMostNorm);
      optimizer->step();
      optimizer->zero_grad();
      outcome.losses.insert(outcome.losses.end(), losses.begin(), losses.end());
    }
    for (const auto& [name, weight] : pipeline.named_parameters()) {
      const at::Tensor whole = pipeline.masters() ? pipeline.masters()->whole_of(weight, weight) : weight.detach();
      outcome.weights[name] = whole.cpu();
    }
    outcome.replayed = pipeline.captured().replayed;
    if (which_ + 1 < static_cast<int>(case_.layouts.size())) {
      save_checkpoint(world_, pipeline, checkpoint_, {.optimizer = optimizer.get()});
    }
    return outcome;
  }

 private:
  Pipeline make_pipeline() {
    const Traits& traits = case_.traits;
    std::vector<std::int64_t> begins = {0};
    for (const std::int64_t size : even_sizes(traits.layers, layout_.stages())) begins.push_back(begins.back() + size);
    const Placement placement =
        make_schedule(layout_.schedule,
                      {.ranks = layout_.ranks, .stages_per_rank = layout_.stages_per_rank, .microbatches = 1})
            .placement;
    std::vector<Stage> stages;
    for (const StageId id : placement.stages_of(world_.rank())) {
      const Stage plain =
          make_layers(traits, id.value, static_cast<int>(begins[id.index()]), static_cast<int>(begins[id.index() + 1]));
      stages.emplace_back(
          id.value,
          [this, plain](const StageCall& call) {
            saboteur_.at_forward(call, world_.replica());
            return plain.forward(call);
          },
          plain.parameters(), plain.buffers(), [plain] { return plain.enter_evaluation(); },
          with_saboteur(plain.options()));
    }
    PipelineOptions options = {.schedule = layout_.schedule,
                               .microbatches = layout_.microbatches,
                               .loss =
                                   [traits](const Value& output, const Value& target, const ValueDict&) {
                                     return loss_of(traits, as_arguments(output)[0].tensor(), target.tensor());
                                   },
                               .edges = edges_of(traits, begins),
                               .broadcast_loss = true,
                               .seed = case_.seed,
                               .bucket_bytes = 100,
                               .shard = layout_.shard,
                               .precision = precision_of(case_),
                               .accumulate = declares_accumulation() ? case_.accumulated : 1,
                               .recompute = recompute_of(case_),
                               .graph = graph_,
                               .lanes = case_.lanes};
    if (traits.ignored) options.loss_weight = counted_targets();
    if (traits.tied && layout_.stages() > 1) {
      options.ties.push_back({weight_name(traits, 0), {StageId(0), StageId(layout_.stages() - 1)}});
    }
    Pipeline pipeline(world_, std::move(stages), std::move(options));
    if (!declares_accumulation()) {
      pipeline.on(ActionKind::kReduceGrad, [this](const ActionContext& action) {
        if (reduces_) action.run();
      });
    }
    return pipeline;
  }

  /// By an option, or by hand: a handler that puts the reduction off.
  [[nodiscard]] bool declares_accumulation() const {
    return layout_.shard != Shard::kNone || case_.is_mixed() || case_.graph || case_.seed % 2 == 0;
  }

  StageOptions with_saboteur(StageOptions options) {
    options.layers = [this, plain = options.layers] {
      std::vector<StageLayer> layers = plain();
      layers.front().forward = [this, first = layers.front().forward](const StageCall& call) {
        saboteur_.at_forward(call, world_.replica());
        return first(call);
      };
      return layers;
    };
    return options;
  }

  /// The steps of one update of the optimizer; false if one of them failed.
  bool accumulate(Pipeline& pipeline, int first, int update, std::vector<double>& losses) {
    for (int i = 0; i < case_.accumulated; ++i) {
      saboteur_.step = update * case_.accumulated + i;
      reduces_ = declares_accumulation() || i + 1 == case_.accumulated;
      const Batch batch = batch_of(case_, first + saboteur_.step);
      const at::Tensor input = world_.share_of(batch.input);
      const at::Tensor before = input.clone();
      const StepOptions options = {.target = world_.share_of(batch.target)};
      if (case_.records) pipeline.record_timeline((first + saboteur_.step) % 3 == 1);
      const bool is_due = saboteur_.is_due();
      try {
        losses.push_back(pipeline.step({input}, options).loss());
      } catch (...) {
        if (!is_due) throw;
        saboteur_.done = true;
        return false;
      }
      EXPECT_FALSE(is_due && !graph_) << "it does not fail";
      if (is_due) saboteur_.done = true;  // a replay calls nobody who could throw, but the evaluation would
      if (i == 0) pipeline.eval({input}, options);            // leaves nothing behind
      EXPECT_TRUE(at::equal(input, before)) << "the batch was changed";
    }
    return true;
  }

  World& world_;
  const Case& case_;
  bool graph_;
  int which_;
  const Layout& layout_;
  std::string checkpoint_;
  Saboteur saboteur_;
  bool reduces_ = true;
};

void run_world(const Layout& layout, const std::function<void(World&)>& program) {
  if (processes() > 0) {
    const RankScope scope(device(), 1);
    World world(ProcessEnvironment::transport(), scope.device(), kPatience, layout.replicas);
    return program(world);
  }
  run_ranks({.ranks = layout.ranks,
             .replicas = layout.replicas,
             .threads_per_rank = 1,
             .device = [](RankId) { return device(); },
             .timeout = kPatience},
            program);
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance, const std::string& what) {
  const double scale = std::max(1e-3, expected.abs().max().item<double>());
  EXPECT_LE((got - expected).abs().max().item<double>() / scale, tolerance) << what;
}

/// What every rank of the world leaves behind after each layout.
using Outcomes = std::vector<std::map<int, Outcome>>;

/// Trains, and compares with one device.
Outcomes train(const Case& drawn, bool graph, const std::string& checkpoint, const Outcome& expected) {
  SCOPED_TRACE(graph ? "as a graph" : "eagerly");
  const double tolerance = drawn.traits.type == at::kFloat || drawn.is_mixed() ? 2e-4 : 1e-9;
  Outcomes outcomes(drawn.layouts.size());
  std::mutex mutex;
  for (std::size_t which = 0; which < drawn.layouts.size(); ++which) {
    const bool is_last = which + 1 == drawn.layouts.size();
    std::map<std::string, at::Tensor> seen;  // weights on several ranks must be equal bit for bit
    run_world(drawn.layouts[which], [&](World& world) {
      const Outcome got = RankOfLayout(world, drawn, graph, static_cast<int>(which), checkpoint).train();
      const std::lock_guard lock(mutex);
      outcomes[which][world.world_rank().value] = got;
      const auto steps = static_cast<std::size_t>(drawn.steps_per_layout());
      ASSERT_EQ(got.losses.size(), steps);
      for (std::size_t step = 0; step < steps; ++step) {
        const double loss = expected.losses[which * steps + step];
        EXPECT_NEAR(got.losses[step], loss, tolerance * std::max(1.0, std::abs(loss))) << "loss of step " << step;
      }
      if (!is_last) return;
      for (const auto& [name, weight] : got.weights) {
        expect_close(weight, expected.weights.at(name), tolerance, name + " on " + world.name());
        const auto [other, is_new] = seen.emplace(name, weight);
        EXPECT_TRUE(is_new || at::equal(other->second, weight)) << name << " differs on " << world.name();
      }
    });
    if (testing::Test::HasFailure()) break;
  }
  return outcomes;
}

void expect_same_bits(const Outcomes& got, const Outcomes& expected) {
  for (std::size_t layout = 0; layout < got.size(); ++layout) {
    for (const auto& [rank, outcome] : got[layout]) {
      SCOPED_TRACE("graph and eager, layout " + std::to_string(layout) + ", rank " + std::to_string(rank));
      const Outcome& eager = expected[layout].at(rank);
      EXPECT_EQ(outcome.losses, eager.losses);
      for (const auto& [name, weight] : outcome.weights) EXPECT_TRUE(at::equal(weight, eager.weights.at(name))) << name;
    }
  }
}

/// Returns how many steps were replayed.
std::uint64_t compare(const Case& drawn, const std::string& checkpoint) try {
  SCOPED_TRACE(drawn.text());
  at::set_num_threads(1);
  const Outcome expected = OneDevice(drawn).train();
  const Outcomes eager = train(drawn, /*graph=*/false, checkpoint, expected);
  if (!drawn.graph || testing::Test::HasFailure()) return 0;
  const Outcomes graph = train(drawn, /*graph=*/true, checkpoint, expected);
  expect_same_bits(graph, eager);
  std::uint64_t replayed = 0;
  for (const auto& layout : graph) {
    for (const auto& [rank, outcome] : layout) replayed += outcome.replayed;
  }
  return replayed;
} catch (const std::exception& error) {
  ADD_FAILURE() << drawn.text() << "\n" << error.what();
  return 0;
}

std::optional<std::uint64_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? std::nullopt : std::optional<std::uint64_t>(std::strtoull(text, nullptr, 10));
}

/// All processes draw the same cases, and stop after the same one.
std::int64_t as_rank_zero_says(std::int64_t number) {
  if (processes() == 0) return number;
  World world(ProcessEnvironment::transport(), device(), kPatience);
  return std::stoll(world.everyone().broadcast(Message{{}, std::to_string(number)}, 0).header);
}

TEST(Crossings, EqualOneDevice) {
  const ScratchFolder folder;
  const double seconds =
      static_cast<double>(number_in("STAGECRAFT_CROSSINGS_SECONDS").value_or(10)) / (processes() > 0 ? 10 : 1);
  const auto only = number_in("STAGECRAFT_CROSSINGS_SEED");
  const auto first = number_in("STAGECRAFT_CROSSINGS_FIRST");
  const auto now =
      static_cast<std::int64_t>(std::chrono::system_clock::now().time_since_epoch().count() % 1'000'000'000);
  auto seed = static_cast<std::uint64_t>(
      as_rank_zero_says(static_cast<std::int64_t>(only.value_or(first.value_or(static_cast<std::uint64_t>(now))))));
  const std::string checkpoint =
      processes() == 0
          ? folder.path("checkpoint")
          : (std::filesystem::temp_directory_path() / ("stagecraft-crossings-" + std::to_string(seed))).string();
  std::printf("seeds from %llu on\n", static_cast<unsigned long long>(seed));
  const double begin = seconds_now();
  int cases = 0;
  int graphs = 0;
  std::uint64_t replayed = 0;
  do {
    const Case drawn = draw_case(seed++, processes());
    if (first) std::fprintf(stderr, "%s\n", drawn.text().c_str());
    replayed += compare(drawn, checkpoint);
    graphs += drawn.graph;
    ++cases;
  } while (as_rank_zero_says(!HasFailure() && !only && seconds_now() - begin < seconds) != 0);
  std::printf("%d cases, %d of them as graphs too: %llu steps were replayed\n", cases, graphs,
              static_cast<unsigned long long>(replayed));
  std::filesystem::remove(checkpoint);
}

}  // namespace
}  // namespace stagecraft::crossings
