// Tensors of every kind: what arrives, between ranks and through collectives.

#include "conformance/fabrics.h"

namespace stagecraft::conformance {
namespace {

struct KindOfTensor {
  std::string name;
  std::function<at::Tensor(int seed)> make;
};

at::Tensor numbers(at::IntArrayRef sizes, int seed, at::ScalarType type = at::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const at::Tensor real = pattern(count, at::kDouble, seed).view(sizes) - 40;
  if (!at::isComplexType(type)) return real.to(type);
  return at::complex(real, real.flip(0) * 3).to(type);
}

at::Tensor sparse_numbers(int seed) {
  const at::Tensor rows = at::tensor({3, 0, 3}, at::kLong);  // the same place twice: not coalesced
  const at::Tensor columns = at::tensor({1, 2, 1}, at::kLong);
  return at::sparse_coo_tensor(at::stack({rows, columns}), numbers({3, 2}, seed), {5, 4, 2});
}

std::vector<KindOfTensor> kinds_of_tensors() {
  std::vector<KindOfTensor> kinds;
  for (const std::int64_t size : {3, 90}) {  // small enough for the envelope of a message, and too large
    const std::string by = "_" + std::to_string(size);
    kinds.push_back({"dense" + by, [=](int s) { return numbers({size, size}, s); }});
    kinds.push_back({"bool" + by, [=](int s) { return numbers({size, size}, s) > 0; }});
    kinds.push_back({"bf16" + by, [=](int s) { return numbers({size, size}, s, at::kBFloat16); }});
    kinds.push_back({"expanded" + by, [=](int s) { return numbers({size, 1}, s).expand({size, size}); }});
    kinds.push_back({"transposed" + by, [=](int s) { return numbers({size, 2 * size}, s).t(); }});
    kinds.push_back({"strided" + by, [=](int s) { return numbers({size, 2 * size}, s).slice(1, 1, 2 * size, 2); }});
    kinds.push_back({"inside another" + by, [=](int s) { return numbers({size + 2, size}, s).narrow(0, 1, size); }});
    kinds.push_back({"channels last" + by, [=](int s) {
                       return numbers({2, 3, size, size}, s).contiguous(at::MemoryFormat::ChannelsLast);
                     }});
    for (const at::ScalarType type : {at::kComplexFloat, at::kComplexDouble}) {
      const std::string complex = std::string(c10::toString(type)) + by;
      kinds.push_back({complex, [=](int s) { return numbers({size, size}, s, type); }});
      kinds.push_back({"conjugate " + complex, [=](int s) { return numbers({size, size}, s, type).conj(); }});
      kinds.push_back({"adjoint " + complex, [=](int s) { return numbers({size, 2 * size}, s, type).mH(); }});
      kinds.push_back({"imaginary part of a conjugate " + complex, [=](int s) {
                         return at::imag(numbers({size, size}, s, type).conj());
                       }});
    }
  }
  kinds.push_back({"one number", [](int s) { return numbers({}, s); }});
  kinds.push_back({"one conjugate", [](int s) { return numbers({1}, s, at::kComplexFloat)[0].conj(); }});
  kinds.push_back({"empty", [](int) { return at::empty({3, 0, 2}); }});
  kinds.push_back({"empty and transposed", [](int) { return at::empty({3, 0, 2}).transpose(0, 2); }});
  kinds.push_back({"only zeros", [](int) { return at::_efficientzerotensor({3, 4}, at::kFloat); }});
  kinds.push_back({"sparse", sparse_numbers});
  kinds.push_back({"sparse, coalesced", [](int s) { return sparse_numbers(s).coalesce(); }});
  kinds.push_back({"sparse without entries", [](int) { return at::zeros({4, 3}).to_sparse(); }});
  kinds.push_back({"sparse, large", [](int s) { return numbers({200, 200}, s).relu().to_sparse(); }});
  kinds.push_back({"sparse and complex", [](int s) {
                     return numbers({4, 3}, s, at::kComplexFloat).to_sparse().conj();
                   }});
  kinds.push_back({"sparse by rows", [](int s) { return numbers({6, 4}, s).relu().to_sparse_csr(); }});
  kinds.push_back({"sparse by columns", [](int s) { return numbers({6, 4}, s).relu().to_sparse_csc(); }});
  kinds.push_back({"sparse by blocks of rows", [](int s) { return numbers({6, 4}, s).to_sparse_bsr({2, 2}); }});
  kinds.push_back({"sparse by blocks of columns", [](int s) { return numbers({6, 4}, s).to_sparse_bsc({3, 2}); }});
  return kinds;
}

void expect_alike(const at::Tensor& got, const at::Tensor& expected, const std::string& name) {
  ASSERT_TRUE(got.defined()) << name;
  EXPECT_EQ(got.layout(), expected.layout()) << name;
  EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << name;
  EXPECT_EQ(got.sizes(), expected.sizes()) << name;
  EXPECT_EQ(got.requires_grad(), expected.requires_grad()) << name;
  if (expected.is_sparse()) {
    EXPECT_EQ(got.is_coalesced(), expected.is_coalesced()) << name;
    EXPECT_EQ(got.sparse_dim(), expected.sparse_dim()) << name;
    EXPECT_EQ(got._nnz(), expected._nnz()) << name;
  }
  const auto dense = [](const at::Tensor& tensor) {
    const at::Tensor plain = tensor.detach();
    return (plain.layout() == at::kStrided ? plain : plain.to_dense()).resolve_conj().resolve_neg().cpu();
  };
  EXPECT_TRUE(at::equal(dense(got), dense(expected))) << name;
}

TEST_P(RulesForTwo, TensorsOfEveryKindArriveAsTheyWere) {
  run([](Transport& transport) {
    const int me = transport.rank().value;
    const RankId peer(1 - me);
    const auto kinds = kinds_of_tensors();
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const auto seed = static_cast<int>(3 * k);
      const at::Tensor own = kinds[k].make(seed + me);
      const bool can_want = own.is_floating_point() || own.is_complex();
      transport.send(peer, tag(static_cast<int>(k)),
                     {{own.detach(), own.detach().set_requires_grad(can_want), at::Tensor()}, "kinds"});
      const Message got = transport.receive(peer, tag(static_cast<int>(k)), kPatience);
      const at::Tensor expected = kinds[k].make(seed + peer.value);
      ASSERT_EQ(got.tensors.size(), 3U) << kinds[k].name;
      expect_alike(got.tensors[0], expected, kinds[k].name);
      expect_alike(got.tensors[1], expected.detach().set_requires_grad(can_want), kinds[k].name);
      EXPECT_FALSE(got.tensors[2].defined()) << kinds[k].name;
      EXPECT_EQ(got.header, "kinds");
    }
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForTwo, MemoryInTheOrderOfChannelsStaysSo) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    const at::Tensor images = at::ones({2, 3, 50, 40}).contiguous(at::MemoryFormat::ChannelsLast);
    transport.send(peer, tag(0), {{images}, ""});
    const at::Tensor got = transport.receive(peer, tag(0), kPatience).tensors[0];
    EXPECT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast));
    transport.settle(kPatience);
  });
}

TEST_P(RulesForTwo, TensorsWithoutMemoryArriveWithTheirShapes) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    transport.send(peer, tag(0), {{at::empty({300, 200}, at::device(at::kMeta).dtype(at::kHalf))}, ""});
    const at::Tensor got = transport.receive(peer, tag(0), kPatience).tensors[0];
    EXPECT_TRUE(got.is_meta());
    EXPECT_EQ(got.sizes(), (std::vector<std::int64_t>{300, 200}));
    EXPECT_EQ(got.scalar_type(), at::kHalf);
    transport.settle(kPatience);
  });
}

TEST_P(RulesForTwo, TensorsThatCannotTravelAreRefusedAlike) {
  run([](Transport& transport) {
    const RankId peer(1 - transport.rank().value);
    const at::Tensor quantized = at::quantize_per_tensor(at::ones({2, 3}), 0.1, 0, at::kQInt8);
    EXPECT_THAT(message_of([&] {
                  transport.send(peer, tag(0), {{quantized}, ""});
                }),
                HasSubstr("a quantized tensor (QInt8 [2, 3]) cannot be sent to another rank: send its dequantize()"));
    const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})});
    EXPECT_THAT(message_of([&] {
                  transport.send(peer, tag(0), {{nested}, ""});
                }),
                HasSubstr("a nested tensor (Float) cannot be sent to another rank: send its parts as a list"));
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

TEST_P(RulesForTwo, CollectivesTakeTensorsOfEveryKind) {
  run([](Transport& transport) {
    const int me = transport.rank().value;
    const std::unique_ptr<Group> both = group_of(transport, {RankId(0), RankId(1)});
    Group& group = *both;
    const auto kinds = kinds_of_tensors();
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const std::string& name = kinds[k].name;
      const auto seed = static_cast<int>(5 * k);
      const at::Tensor first = kinds[k].make(seed);
      const at::Tensor second = kinds[k].make(seed + 1);
      const at::Tensor& own = me == 0 ? first : second;
      const bool is_dense = own.layout() == at::kStrided;
      // A zero tensor and an expanded one cannot be written; compressed layouts have no cat.
      const bool is_writable = name.find("expanded") == std::string::npos && name != "only zeros";
      if (own.dim() > 0 && (is_dense || own.is_sparse())) {
        expect_alike(group.all_gather(own), at::cat({first, second}), "all_gather of " + name);
      }
      if (is_writable && (is_dense || own.is_sparse())) {
        const at::Tensor target = me == 0 ? first : kinds[k].make(seed + 2);
        group.broadcast_into(target, 0);
        expect_alike(target, first, "broadcast_into of " + name);
      }
      if (is_dense && is_writable && own.scalar_type() != at::kBool) {
        const at::Tensor sum = kinds[k].make(seed + me);
        group.all_reduce(sum);
        expect_alike(sum, first + second, "all_reduce of " + name);
        if (own.dim() > 0 && own.size(0) % 2 == 0) {
          expect_alike(group.reduce_scatter(own), (first + second).chunk(2)[static_cast<std::size_t>(me)],
                       "reduce_scatter of " + name);
        }
      }
    }
    EXPECT_THAT(message_of([&] { group.all_reduce(at::ones({3, 1}).expand({3, 3})); }), HasSubstr("give it a clone"));
    EXPECT_THAT(message_of([&] {
                  group.broadcast_into(at::ones({3, 1}).expand({3, 3}), 0);
                }),
                HasSubstr("give it a clone"));
    EXPECT_THAT(message_of([&] { group.all_reduce(sparse_numbers(0)); }), HasSubstr("give its to_dense()"));
    EXPECT_FALSE(transport.settle(kPatience).has_value());
  });
}

}  // namespace
}  // namespace stagecraft::conformance
