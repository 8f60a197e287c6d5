#include "stagecraft/stage/random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "stagecraft/core/error.h"

namespace stagecraft {

/// The generators of one scope and layer, one per device that draws.
struct RandomScope::Streams {
  std::uint64_t seed;
  RandomStream stream;
  std::vector<std::pair<c10::Device, at::Generator>> generators;
  int segment = 0;  // the last that drew

  at::Generator& on(c10::Device device) {
    for (auto& [where, generator] : generators) {
      if (where == device) return generator;
    }
    return generators.emplace_back(device, made_on(device)).second;
  }
  /// Whether it is one of these: an operation passes the one it was given on to those that it is made of.
  [[nodiscard]] bool has(const at::Generator& generator) const {
    return std::any_of(generators.begin(), generators.end(), [&](const auto& own) { return own.second == generator; });
  }
  /// For `go_on_from`.
  [[nodiscard]] std::vector<RandomScope::Continued::Position> positions() const;
  void go_on_from(const RandomScope::Continued::Position& position);

 private:
  [[nodiscard]] at::Generator made_on(c10::Device device) const;
};

namespace {

// A dispatch key that nothing else uses. It can be switched on for one thread; operations without a kernel for it fall
// through at no cost, and random operations get a kernel that passes them the generator to draw from. LibTorch reserves
// the key for tests, but there is no public one, and a global generator cannot be swapped for one thread.
constexpr c10::DispatchKey kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local RandomScope* innermost = nullptr;
thread_local bool takes_turns = false;

/// Why nothing may be drawn; null if it may.
const char* forbidden() { return AlsoInBackwards<const char, NoRandom>::current(); }
/// While a step is captured.
GraphRandom* capturing() { return AlsoInBackwards<GraphRandom>::current(); }

// Stage 3, the layer at position 3 and a layer called "3" have streams of their own.
constexpr std::uint64_t kStages = 1;
constexpr std::uint64_t kPositions = 2;
constexpr std::uint64_t kNames = 3;

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  // splitmix64: neighbouring values give unrelated streams.
  std::uint64_t z = seed + 0x9e3779b97f4a7c15ULL * (value + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// One name per device: "cuda" is the current one of several, "cpu:0" is the CPU.
c10::Device only_name_of(c10::Device device) {
  if (device.is_cpu()) return {c10::kCPU};
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Throws if it is another device than the captured one: numbers of the CPU would be the same in every replay.
void check_captured_draw(c10::Device device) {
  const GraphRandom* random = capturing();
  if (random == nullptr || device == only_name_of(random->device()) || device.is_meta()) return;
  throw InvalidArgument("it draws random numbers on " + (device.is_cpu() ? "the CPU" : device.str()) +
                        ", which a graph would repeat in every step: draw them on the device, or leave out "
                        "PipelineOptions::graph");
}

/// The device on which an operation draws: that of its first tensor, or the one on which it makes a tensor.
c10::Device device_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return only_name_of(argument.toTensor().device());
    if (argument.isDevice()) return only_name_of(argument.toDevice());
  }
  return {c10::kCPU};
}

std::optional<std::size_t> generator_argument(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& type = arguments[i].type();
    if (type->kind() == c10::TypeKind::GeneratorType) return i;
    const auto optional = type->cast<c10::OptionalType>();
    if (optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType) return i;
  }
  return std::nullopt;
}

/// Lets a device's default generator draw from a stream, until the end or an exception.
class Redirected {
 public:
  Redirected(at::Generator global, at::Generator& own) : global_(std::move(global)), own_(own) {
    if (global_.device().is_cuda()) {  // the two share one state: no copies, and it works while a graph is captured
      before_ = global_.graphsafe_get_state();
      global_.graphsafe_set_state(own_);
    } else {
      state_ = global_.get_state();
      global_.set_state(own_.get_state());
    }
  }
  ~Redirected() {
    if (before_.defined()) {
      global_.graphsafe_set_state(before_);
    } else {
      own_.set_state(global_.get_state());
      global_.set_state(state_);
    }
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  at::Generator global_;
  at::Generator& own_;
  at::Generator before_;
  at::Tensor state_;
};

/// Whether an operation that takes no generator calls others that take one, which come here too. They do on a CPU,
/// unless a mode or a tensor's class of Python's stands between: what is called below these does not come here.
bool calls_others(c10::DispatchKeySet beyond, c10::Device device) {
  return device.is_cpu() && !beyond.has(c10::DispatchKey::Python);
}

/// Runs an operation that must not draw. One that takes a generator draws. Any other may draw or not (attention without
/// dropout, or its backward, which is given the numbers of the forward): the default generator tells.
void refuse_to_draw(const c10::OperatorHandle& op, c10::DispatchKeySet beyond, bool takes_generator,
                    torch::jit::Stack* stack) {
  if (takes_generator) throw InvalidArgument(forbidden());
  const c10::Device device = device_of(op, *stack);
  // What is captured has run before.
  if (calls_others(beyond, device) || device.is_meta() || capturing() != nullptr)
    return op.redispatchBoxed(beyond, stack);
  const std::lock_guard lock(default_generators());
  const at::Generator global = at::globalContext().defaultGenerator(device);
  const at::Tensor before = global.get_state();
  const c10::impl::ExcludeDispatchKeyGuard once(kMode);  // operations that it calls draw from the same generator
  op.redispatchBoxed(beyond, stack);
  if (!at::equal(global.get_state(), before)) throw InvalidArgument(forbidden());
}

/// Whether it is a generator of the caller's, and not the device's default, which others use too.
bool is_own(const c10::IValue& given, c10::Device device) {
  if (given.isNone()) return false;
  if (device.is_cpu() || device.is_meta()) return true;
  return !(given.toGenerator() == at::globalContext().defaultGenerator(device));
}

/// Draws from a default generator, which a stage of another rank may have.
void draw_in_turn(const c10::OperatorHandle& op, c10::DispatchKeySet beyond, torch::jit::Stack* stack) {
  const std::lock_guard lock(default_generators());
  const c10::impl::ExcludeDispatchKeyGuard once(kMode);
  op.redispatchBoxed(beyond, stack);
}

/// Whether torch.compile only looks at what a module does. What it draws meanwhile it puts back, in default generators.
bool is_traced() {
  using c10::impl::TorchDispatchModeTLS;
  return TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE).has_value();
}

/// The kernel of random operations on a thread with a scope.
void draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet beyond = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode);
  if (is_traced()) return op.redispatchBoxed(beyond, stack);
  RandomScope::Streams* streams = RandomScope::current();
  if (streams == nullptr) {
    const auto argument = generator_argument(op);
    const c10::Device device = device_of(op, *stack);
    const bool has_own =
        argument && is_own(torch::jit::peek(*stack, *argument, op.schema().arguments().size()), device);
    if (forbidden() != nullptr && !has_own) return refuse_to_draw(op, beyond, argument.has_value(), stack);
    check_captured_draw(device);
    const bool is_alone = has_own || device.is_cpu() || device.is_meta() || capturing() != nullptr;
    return is_alone ? op.redispatchBoxed(beyond, stack) : draw_in_turn(op, beyond, stack);
  }
  const c10::Device device = device_of(op, *stack);
  if (device.is_meta()) return op.redispatchBoxed(beyond, stack);  // nothing is drawn there
  if (const auto argument = generator_argument(op)) {
    c10::IValue& given = torch::jit::peek(*stack, *argument, op.schema().arguments().size());
    if (given.isNone()) {
      given = streams->on(device);
    } else if (!streams->has(given.toGenerator())) {
      RandomScope::check_own_generator();
      if (!is_own(given, device)) return draw_in_turn(op, beyond, stack);
    }
    return op.redispatchBoxed(beyond, stack);
  }
  if (calls_others(beyond, device)) return op.redispatchBoxed(beyond, stack);
  const std::lock_guard lock(default_generators());
  const c10::impl::ExcludeDispatchKeyGuard once(kMode);  // operations that it calls draw from the same generator
  const Redirected redirected(at::globalContext().defaultGenerator(device), streams->on(device));
  op.redispatchBoxed(beyond, stack);
}

void install_once() {
  static const bool installed = [] {
    // Never destroyed: other threads may still compute while the process ends.
    static auto& all = *new torch::Library(torch::Library::IMPL, "_", kMode, __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFallthrough());
    static auto& aten = *new torch::Library(torch::Library::IMPL, "aten", kMode, __FILE__, __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0) continue;
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      const auto tags = op->getTags();
      const bool is_random = std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) != tags.end();
      if (!is_random && !generator_argument(*op)) continue;
      const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&draw>());
    }
    return true;
  }();
  (void)installed;
}

}  // namespace

std::mutex& default_generators() {
  static std::mutex mutex;
  return mutex;
}

std::uint64_t seed_of(const RandomStream& stream, std::uint64_t seed, std::uint64_t step) {
  return mix(mix(mix(seed, step), static_cast<std::uint64_t>(stream.microbatch)), stream.layer);
}

at::Generator RandomScope::Streams::made_on(c10::Device device) const {
  if (capturing() != nullptr) {
    check_captured_draw(device);
    return capturing()->generator(stream, 0);
  }
  at::Generator made =
      device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>(seed)
                      : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  made.set_current_seed(seed);
  return made;
}

std::vector<RandomScope::Continued::Position> RandomScope::Streams::positions() const {
  std::vector<RandomScope::Continued::Position> all;
  for (const auto& [device, generator] : generators) {
    if (capturing() == nullptr) {
      all.push_back({device, generator.get_state()});
    } else {
      all.push_back({device, {}, capturing()->offset_of(generator)});
    }
  }
  return all;
}

void RandomScope::Streams::go_on_from(const RandomScope::Continued::Position& position) {
  if (capturing() == nullptr) return on(position.device).set_state(position.state);
  generators.emplace_back(position.device, capturing()->generator(stream, position.offset));
}

RandomScope::Streams* RandomScope::current() {
  if (innermost == nullptr) return nullptr;
  auto& all = innermost->streams_;
  const auto known =
      std::find_if(all.begin(), all.end(), [](const auto& own) { return own.first == innermost->layer_; });
  if (known != all.end()) {
    innermost->note_continued(*known->second);
    return known->second.get();
  }
  auto made = innermost->new_streams(innermost->layer_);
  return all.emplace_back(innermost->layer_, std::move(made)).second.get();
}

RandomScope::RandomScope(std::uint64_t seed, StageId stage, MicrobatchId microbatch, std::uint64_t step)
    : microbatch_(microbatch.value),
      seed_(mix(mix(seed, step), static_cast<std::uint64_t>(microbatch.value))),
      layer_(mix(kStages, static_cast<std::uint64_t>(stage.value))),
      outer_(innermost),
      was_redirected_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  install_once();
  c10::impl::tls_set_dispatch_key_included(kMode, true);
  innermost = this;
}

std::unique_ptr<RandomScope::Streams> RandomScope::new_streams(std::uint64_t layer) const {
  auto streams = std::make_unique<Streams>();
  streams->seed = mix(seed_, layer);
  streams->stream = {microbatch_, layer};
  streams->segment = segment_;
  return streams;
}

void RandomScope::note_continued(Streams& streams) {
  if (streams.segment == segment_) return;
  streams.segment = segment_;
  continued_.push_back({layer_, streams.positions()});
}

void RandomScope::begin_segment() {
  ++segment_;
  may_repeat_ = true;
  continued_.clear();
}

std::vector<RandomScope::Continued> RandomScope::end_segment() {
  may_repeat_ = false;
  return std::exchange(continued_, {});
}

void RandomScope::restore(const std::vector<Continued>& continued) {
  for (const Continued& own : continued) {
    auto streams = new_streams(own.layer);
    for (const Continued::Position& position : own.positions) streams->go_on_from(position);
    streams_.emplace_back(own.layer, std::move(streams));
  }
}

void RandomScope::check_own_generator() {
  if (capturing() != nullptr) {
    throw InvalidArgument(
        "it draws random numbers from a generator of its own, which a graph cannot follow: let it draw without a "
        "generator, or leave out PipelineOptions::graph");
  }
  if (innermost == nullptr || !innermost->may_repeat_) return;
  throw InvalidArgument(
      "it draws random numbers from a generator of its own, and would draw others when it is computed again: let it "
      "draw without a generator, or leave it out of the recompute");
}

RandomScope::~RandomScope() {
  innermost = outer_;
  c10::impl::tls_set_dispatch_key_included(kMode, was_redirected_);
}

RandomLayer::RandomLayer(std::int64_t position) : scope_(innermost) {
  if (scope_ == nullptr) return;
  before_ = std::exchange(scope_->layer_, mix(kPositions, static_cast<std::uint64_t>(position)));
}

RandomLayer::RandomLayer(std::string_view name) : scope_(innermost) {
  if (scope_ == nullptr) return;
  std::uint64_t key = kNames;
  for (const char letter : name) key = mix(key, static_cast<unsigned char>(letter));
  before_ = std::exchange(scope_->layer_, key);
}

RandomLayer::~RandomLayer() {
  if (scope_ != nullptr) scope_->layer_ = before_;
}

GlobalRandom::GlobalRandom()
    : was_redirected_(c10::impl::tls_is_dispatch_key_included(kMode)),
      outer_(std::exchange(innermost, nullptr)),
      allowed_(nullptr) {
  // What is captured still must not draw on the CPU.
  c10::impl::tls_set_dispatch_key_included(kMode, capturing() != nullptr || takes_turns);
}
GlobalRandom::~GlobalRandom() {
  innermost = outer_;
  c10::impl::tls_set_dispatch_key_included(kMode, was_redirected_);
}

GraphRandomScope::GraphRandomScope(GraphRandom& random)
    : random_(&random), was_redirected_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  install_once();
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}
GraphRandomScope::~GraphRandomScope() { c10::impl::tls_set_dispatch_key_included(kMode, was_redirected_); }

RandomTurns::RandomTurns()
    : took_turns_(std::exchange(takes_turns, true)), was_redirected_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  install_once();
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}
RandomTurns::~RandomTurns() {
  takes_turns = took_turns_;
  c10::impl::tls_set_dispatch_key_included(kMode, was_redirected_);
}

NoRandom::NoRandom(const char* why)
    : why_(why),
      outer_(std::exchange(innermost, nullptr)),
      was_redirected_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  install_once();
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}
NoRandom::~NoRandom() {
  innermost = outer_;
  c10::impl::tls_set_dispatch_key_included(kMode, was_redirected_);
}

}  // namespace stagecraft
