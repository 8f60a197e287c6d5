#include "stagecraft/stage/microbatches.h"

#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/stage/packing.h"
#include "stagecraft/stage/random.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using at::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Split, IsEvenWithTheLargerPartsFirst) {
  EXPECT_THAT(even_sizes(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(even_sizes(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(even_sizes(3, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(message_of([] { even_sizes(2, 3); }), HasSubstr("2 rows cannot be cut into 3 parts"));
}

TEST(Split, TreesScalarsAndZeroDimensionalTensors) {
  const Tensor x = at::arange(10).view({5, 2});
  const Value tree(ValueDict{{"x", x}, {"n", 3}, {"t", at::scalar_tensor(2.5)}, {"list", ValueList{x * 2, Value()}}});
  const std::vector<Value> parts = split(tree, Split(), 2, "keyword 'k'");
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(at::equal(parts[0].at("x").tensor(), x.narrow(0, 0, 3)));
  EXPECT_TRUE(at::equal(parts[1].at("list")[0].tensor(), x.narrow(0, 3, 2) * 2));
  for (const Value& part : parts) {
    EXPECT_EQ(part.at("n").integer(), 3);
    EXPECT_EQ(part.at("t").tensor().item<double>(), 2.5);
    EXPECT_TRUE(part.at("list")[1].is_none());
  }
}

TEST(Split, AlongAnyDimensionIntoAnySizesOrNotAtAll) {
  const Tensor x = at::arange(12).view({2, 6});
  EXPECT_TRUE(at::equal(split(x, Split::along(1), 3, "x")[1].tensor(), x.narrow(1, 2, 2)));
  EXPECT_TRUE(at::equal(split(x, Split::along(-1), 3, "x")[1].tensor(), x.narrow(1, 2, 2)));
  EXPECT_TRUE(at::equal(split(x, Split::into({1, 5}, 1), 2, "x")[1].tensor(), x.narrow(1, 1, 5)));
  EXPECT_TRUE(at::equal(split(x, Split::replicate(), 2, "x")[1].tensor(), x));
  EXPECT_THAT(split_sizes(x, Split::into({1, 5}, 1), 2, "x"), ElementsAre(1, 5));
  EXPECT_TRUE(split_sizes(x, Split::replicate(), 2, "x").empty());
}

TEST(Split, RefusesBeforeAnythingIsCut) {
  const Tensor x = at::arange(12).view({2, 6});
  EXPECT_THAT(message_of([&] { split(x, Split(), 3, "argument 1"); }),
              HasSubstr("argument 1: shape [2, 6] has 2 rows along dimension 0, fewer than the 3 microbatches"));
  EXPECT_THAT(message_of([&] { split(x, Split::along(2), 2, "target"); }),
              HasSubstr("there is no dimension 2 in shape"));
  EXPECT_THAT(message_of([&] { split(x, Split::into({1, 2}, 1), 2, "x"); }), HasSubstr("add up to 3, but there are 6"));
  EXPECT_THAT(message_of([&] { split(x, Split::into({0, 6}, 1), 2, "x"); }), HasSubstr("at least 1"));
}

TEST(Merge, PutsTreesTogether) {
  const auto part = [](int m) { return Value(ValueList{at::full({m + 1, 2}, m), at::scalar_tensor(m), 7}); };
  const Value joined = concatenate()({part(0), part(1)});
  EXPECT_EQ(joined[0].tensor().size(0), 3);
  EXPECT_TRUE(at::equal(joined[1].tensor(), at::tensor({0.0F, 1.0F})));
  EXPECT_EQ(joined[2].integer(), 7);
  EXPECT_EQ(add_up()({Value(at::ones({2})), Value(at::ones({2}))}).tensor()[0].item<int>(), 2);
  EXPECT_EQ(average()({Value(at::ones({2})), Value(at::zeros({2}))}).tensor()[0].item<double>(), 0.5);
  EXPECT_EQ(take_first()({Value(3), Value(4)}).integer(), 3);
  EXPECT_THAT(message_of([&] {
                concatenate()({Value(3), part(0)});
              }),
              HasSubstr("one is a whole number, another a list"));
  const auto refusal = [](const Value& a, const Value& b) { return message_of([&] { concatenate()({a, b}); }); };
  EXPECT_THAT(refusal(Value(3), Value(4)), HasSubstr("a whole number differs between them: give a reducer"));
  EXPECT_THAT(refusal(Value("left"), Value("right")), HasSubstr("differs between them"));
  EXPECT_THAT(refusal(ValueList{at::ones({1})}, ValueList{at::ones({1}), at::ones({1})}),
              HasSubstr("one is a list of 1, another a list of 2"));
  EXPECT_THAT(refusal(ValueDict{{"a", at::ones({1})}, {"b", at::ones({1})}},
                      ValueDict{{"b", at::ones({1})}, {"a", at::ones({1})}}),
              HasSubstr("one is a dict of (a, b), another a dict of (b, a)"));
}

/// What no microbatch may have another of, if it is a part of the structure.
class Mark : public Opaque {
 public:
  explicit Mark(std::string name, bool is_structure = true) : name_(std::move(name)), is_structure_(is_structure) {}
  [[nodiscard]] std::string kind() const override { return "a mark called " + name_; }
  [[nodiscard]] bool stands_for(const Opaque& other) const override {
    return !is_structure_ || kind() == other.kind();
  }

 private:
  std::string name_;
  bool is_structure_;
};

TEST(Merge, KeepsTheFirstObjectUnlessItSaysHowTheOutputIsBuilt) {
  const auto part = [](const std::string& name, bool is_structure) {
    return Value(ValueList{Value(OpaquePtr(std::make_shared<Mark>(name, is_structure))), at::ones({1})});
  };
  const Value first = part("a", false);
  const Value joined = concatenate()({first, part("b", false)});
  EXPECT_EQ(std::get<OpaquePtr>(joined[0].held()), std::get<OpaquePtr>(first[0].held()));
  EXPECT_EQ(joined[1].tensor().size(0), 2);
  EXPECT_EQ(concatenate()({part("a", true), part("a", true)})[1].tensor().size(0), 2);
  EXPECT_THAT(message_of([&] {
                concatenate()({part("a", true), part("b", true)});
              }),
              HasSubstr("one is a mark called a, another a mark called b: give a reducer"));
}

TEST(Packing, RoundTrips) {
  const ValueList values{at::ones({2}),
                         Value(),
                         true,
                         -5,
                         2.5,
                         "text",
                         ValueList{at::zeros({1}), at::Tensor()},
                         ValueDict{{"key", at::ones({3})}, {"", ValueList{}}}};
  const Message message = pack(values);
  EXPECT_EQ(message.tensors.size(), 4U);
  const ValueList back = unpack(message);
  ASSERT_EQ(back.size(), values.size());
  EXPECT_TRUE(back[1].is_none());
  EXPECT_TRUE(back[2].flag());
  EXPECT_EQ(back[3].integer(), -5);
  EXPECT_EQ(back[4].real(), 2.5);
  EXPECT_EQ(back[5].text(), "text");
  EXPECT_FALSE(back[6][1].tensor().defined());
  EXPECT_EQ(back[7].at("key").tensor().size(0), 3);
  for (std::size_t cut = 1; cut < message.form->size(); ++cut) {
    Message broken = message;
    broken.form = std::make_shared<const std::string>(message.form->substr(0, cut));
    EXPECT_THROW(unpack(broken), TransportError) << cut;
  }
  EXPECT_THROW(unpack(Message{{at::ones({2})}}), TransportError);
}

TEST(Packing, MessagesThatLookAlikeShareTheirForm) {
  Packer packer;
  const auto form = [&](const ValueList& values) { return packer.pack(values).form; };
  const auto first = form({ValueList{at::ones({2})}, 3});
  EXPECT_EQ(form({ValueList{at::zeros({5})}, 3}), first);
  const auto second = form({ValueList{at::zeros({5})}, 2});
  EXPECT_NE(second, first);
  EXPECT_EQ(form({ValueList{at::ones({2})}, 3}), first);
  for (int other = 10; other < 20; ++other) form({other});  // it remembers a few
  EXPECT_NE(form({ValueList{at::ones({2})}, 3}), first);
}

TEST(RandomScope, StreamsDependOnStageMicrobatchAndStepAlone) {
  const auto draw = [](int stage, int microbatch, int step) {
    const RandomScope scope(3, StageId(stage), MicrobatchId(microbatch), static_cast<std::uint64_t>(step));
    return at::cat({at::rand({8}), at::dropout(at::ones({8}), 0.5, true), at::randn({8}),
                    at::bernoulli(at::full({8}, 0.5)), at::randint(100, {8}).to(at::kFloat), at::empty({8}).uniform_(),
                    at::randperm(8).to(at::kFloat)});
  };
  const Tensor expected = draw(1, 2, 3);
  torch::manual_seed(99);
  at::rand({5});
  EXPECT_TRUE(at::equal(draw(1, 2, 3), expected));
  EXPECT_FALSE(at::equal(draw(2, 1, 3), expected));
  EXPECT_FALSE(at::equal(draw(1, 2, 4), expected));
  std::vector<Tensor> got(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) got[t] = draw(1, 2, 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& other : got) EXPECT_TRUE(at::equal(other, expected));
}

TEST(RandomLayer, HasAStreamThatDoesNotDependOnTheStage) {
  const auto drawn = [](int stage, auto layer) {
    const RandomScope scope(3, StageId(stage), MicrobatchId(1), 2);
    const RandomLayer inside(layer);
    return at::rand({4});
  };
  EXPECT_TRUE(drawn(0, std::int64_t{7}).equal(drawn(2, std::int64_t{7})));
  EXPECT_FALSE(drawn(0, std::int64_t{7}).equal(drawn(0, std::int64_t{8})));
  EXPECT_TRUE(drawn(0, "block.1").equal(drawn(2, "block.1")));
  EXPECT_FALSE(drawn(0, "block.1").equal(drawn(0, "block.2")));
  EXPECT_FALSE(drawn(0, "7").equal(drawn(0, std::int64_t{7})));

  const RandomScope scope(3, StageId(0), MicrobatchId(1), 2);
  at::Tensor twice;
  {
    const RandomLayer inside(std::int64_t{7});
    twice = at::rand({8});
  }
  const RandomScope again(3, StageId(0), MicrobatchId(1), 2);
  const auto half = [] {
    const RandomLayer inside(std::int64_t{7});
    return at::rand({4});
  };
  const at::Tensor first = half();
  at::rand({5});  // of the stage
  EXPECT_TRUE(at::cat({first, half()}).equal(twice)) << "a layer that is entered again goes on";
}

TEST(RandomScope, DrawsFromOneStreamWhateverTheDeviceIsCalled) {
  const RandomScope scope(3, StageId(0), MicrobatchId(1), 2);
  const at::Tensor first = at::rand({4}, at::Device("cpu"));
  const at::Tensor second = at::rand({4}, at::Device("cpu:0"));
  EXPECT_FALSE(first.equal(second));
  const RandomScope again(3, StageId(0), MicrobatchId(1), 2);
  EXPECT_TRUE(at::rand({8}).equal(at::cat({first, second})));
}

TEST(RandomScope, LeavesTheGlobalGeneratorAloneAndNests) {
  torch::manual_seed(5);
  const Tensor expected = at::rand({4});
  torch::manual_seed(5);
  {
    const RandomScope outer(1, StageId(0), MicrobatchId(0));
    const Tensor first = at::rand({4});
    {
      const RandomScope inner(1, StageId(0), MicrobatchId(0));
      EXPECT_TRUE(at::equal(at::rand({4}), first));
    }
    EXPECT_FALSE(at::equal(at::rand({4}), first));
  }
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

/// What `work` throws on a thread that runs a backward of this one, as autograd has for a GPU.
std::string message_in_backward(const std::function<void()>& work) {
  std::string message;
  std::thread backward([&, here = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard same(here);
    message = message_of(work);
  });
  backward.join();
  return message;
}

TEST(NoRandom, CountsOnTheThreadsOfBackwards) {
  const auto draw = [] { at::rand({2}); };
  {
    const NoRandom none("not here");
    EXPECT_EQ(message_of(draw), "not here");
    EXPECT_EQ(message_in_backward(draw), "not here");
    {
      const GlobalRandom allowed;
      EXPECT_EQ(message_of(draw), "nothing was thrown");
      EXPECT_EQ(message_in_backward(draw), "nothing was thrown");
    }
    EXPECT_EQ(message_in_backward(draw), "not here");
  }
  EXPECT_EQ(message_in_backward(draw), "nothing was thrown");
}

TEST(GraphRandomScope, CountsOnTheThreadsOfBackwards) {
  struct OfAGpu : GraphRandom {
    [[nodiscard]] c10::Device device() const override { return {c10::kCUDA, 0}; }
    at::Generator generator(const RandomStream&, std::uint64_t) override { return {}; }
    [[nodiscard]] std::uint64_t offset_of(const at::Generator&) const override { return 0; }
  } random;
  const GraphRandomScope captured(random);
  const NoRandom within("not here");  // of another type: it does not hide the scope
  const auto draw = [] {
    const GlobalRandom allowed;
    at::rand({2});
  };
  EXPECT_THAT(message_in_backward(draw), HasSubstr("it draws random numbers on the CPU, which a graph would repeat"));
}

TEST(RandomScope, AGeneratorGivenByHandIsUsed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const Tensor expected = at::rand({4}, generator);
  generator.set_current_seed(7);
  const RandomScope scope(1, StageId(0), MicrobatchId(0));
  EXPECT_TRUE(at::equal(at::rand({4}, generator), expected));
}

}  // namespace
}  // namespace stagecraft
