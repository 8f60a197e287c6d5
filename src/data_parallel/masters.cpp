#include "stagecraft/data_parallel/masters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <mutex>

#include "beside_thread.h"
#include "flat.h"
#include "presence.h"
#include "replica_buffers.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"

namespace stagecraft {
namespace {

bool is_in(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
}

/// The parameters of the stages, by what they have in common; `names` gets the name of each master.
std::vector<Flat> flats_of(const std::vector<Stage>& stages, const MasterOptions& options,
                           const std::vector<at::Tensor>& tied, std::vector<std::string>& names) {
  std::vector<Flat> flats;
  std::vector<at::Tensor> known;
  const auto add = [&](const std::string& name, const at::Tensor& parameter) {
    Flat::Kind kind;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const NamedTensors& own = stages[stage].parameters();
      const auto is_it = [&](const auto& other) { return other.second.is_same(parameter); };
      if (std::any_of(own.begin(), own.end(), is_it)) kind.stages.push_back(stage);
    }
    kind.is_tied = is_in(tied, parameter);
    kind.master_type = kind.compute_type = parameter.scalar_type();
    if (parameter.is_floating_point()) {
      if (options.type) kind.master_type = *options.type;
      if (options.compute) kind.compute_type = options.compute(name).value_or(kind.compute_type);
    }
    auto found = std::find_if(flats.begin(), flats.end(), [&](const Flat& flat) { return flat.kind() == kind; });
    if (found == flats.end()) found = flats.insert(flats.end(), Flat(kind));
    found->pieces.push_back({name, parameter, names.size(), {}, {}});
    names.push_back(name);
    known.push_back(parameter);
  };
  for (const Stage& stage : stages) {
    for (const auto& [name, parameter] : stage.parameters()) {
      if (parameter.defined() && !is_in(known, parameter)) add(name, parameter);
    }
  }
  return flats;
}

}  // namespace

class Masters::Implementation {
 public:
  Implementation(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
                 const MasterOptions& options, at::Device device, const std::vector<at::Tensor>& tied)
      : peers_(std::move(peers)),
        stages_(stages),
        options_(options),
        parts_(options.shard == Shard::kNone ? 1 : peers_->size()),
        buffers_(*peers_, stages),
        flats_(flats_of(stages, options, tied, names_)),
        is_used_(stages.size(), false),
        beside_(*peers_, device) {
    reorder(order);
    for (const Stage& stage : stages) {
      const std::string text = " of stage " + std::to_string(stage.index().value);
      gathering_texts_.push_back("the parameters" + text);
      reducing_texts_.push_back("the average of the gradients" + text);
    }
    reducing_texts_.emplace_back("the average of the gradients of tied parameters");
  }

  ~Implementation() { beside_.rest(); }

  void make_equal() {
    make_stages_equal(*peers_, stages_);
    masters_.resize(names_.size());
    for (Flat& flat : flats_) {
      flat.lay_out(parts_, parts_ == 1 ? 0 : peers_->place());
      for (const Piece& piece : flat.pieces) {
        at::Tensor master = flat.part_of(piece, flat.shard());
        if (piece.parameter.requires_grad()) master.set_requires_grad(true);
        masters_[piece.master] = {piece.name, master};
      }
      if (frees()) flat.free();
    }
  }

  void reorder(const std::vector<std::size_t>& order) {
    for (Flat& flat : flats_) {
      flat.reduced_with = flat.kind().stages.back();
      for (const std::size_t stage : order) {
        if (flat.is_of(stage)) flat.reduced_with = stage;
      }
    }
  }

  // --- parameters ---

  void begin_step(bool masters_may_have_changed) {
    records_.clear();
    release();
    std::vector<std::uint32_t> versions;
    for (const auto& [name, master] : masters_) versions.push_back(master._version());
    if (masters_may_have_changed || versions != versions_) expire();
    versions_ = std::move(versions);
  }

  void expire() {
    for (Flat& flat : flats_) flat.is_stale = !flat.is_one();
  }

  template <typename Visit>
  void for_each_flat(std::size_t stage, const Visit& visit) {
    for (Flat& flat : flats_) {
      if (flat.is_of(stage)) visit(flat);
    }
  }

  void unshard(std::size_t stage) {
    if (is_used_[stage]) return;
    is_used_[stage] = true;
    for_each_flat(stage, [&](Flat& flat) {
      if (++flat.users > 1 || !flat.is_stale) return;
      if (!flat.has_memory()) flat.provide();
      flat.is_stale = false;
      flat.gathering = beside_.start("while " + gathering_texts_[stage] + " were gathered from the replicas",
                                     [this, &flat, stage] { gather(flat, stage); });
    });
  }

  double require(std::size_t stage) {
    if (!is_used_[stage]) unshard(stage);
    double waited = 0;
    for_each_flat(stage, [&](Flat& flat) { waited += wait_for(flat, stage); });
    return waited;
  }

  void reshard(std::size_t stage) {
    if (!is_used_[stage]) return;
    is_used_[stage] = false;
    for_each_flat(stage, [&](Flat& flat) {
      if (--flat.users > 0 || !frees()) return;
      wait_for(flat, stage);  // it was not needed after all
      flat.free();
    });
  }

  void release() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) reshard(stage);
  }

  // --- gradients ---

  void collect(std::size_t stage) {
    for_each_flat(stage, [](Flat& flat) { flat.collect_gradients(); });
  }

  /// Tied parameters are not reduced with a stage.
  void reduce(std::size_t stage) {
    const bool of_tied = stage == stages_.size();
    const std::string whose = of_tied ? "tied parameters" : "stage " + std::to_string(stages_[stage].index().value);
    beside_.start("while the gradients of " + whose + " were averaged over the replicas", [this, stage, of_tied] {
      const at::NoGradGuard no_grad;
      BesideRecord record{BesideRecord::Kind::kReduction, stage, seconds_now(), 0, 0, 0};
      const auto during = peers_->during(reducing_texts_[stage]);
      for (Flat& flat : flats_) {
        if (flat.kind().is_tied == of_tied && (of_tied || flat.reduced_with == stage)) reduce(flat, record);
      }
      if (!of_tied) buffers_.spread(stage);
      record.end = seconds_now();
      const std::lock_guard lock(mutex_);
      if (!of_tied && peers_->size() > 1) records_.push_back(record);
    });
  }

  void finish() {
    const double begin = seconds_now();
    beside_.finish();
    note_wait(records_, begin);
  }

  void cancel() {
    beside_.rest();
    for (Flat& flat : flats_) flat.gathering = 0;
    // What a gathering has left is unknown.
    expire();
    release();
    drop_gradients();
  }

  void spread_buffers() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) buffers_.spread(stage);
  }

  void drop_gradients() {
    for (Flat& flat : flats_) flat.drop_gradients();
  }

  // --- one parameter ---

  struct Place {
    Flat* flat;
    Piece* piece;
  };
  template <typename Fits>
  [[nodiscard]] Place find(const Fits& fits) {
    for (Flat& flat : flats_) {
      for (Piece& piece : flat.pieces) {
        if (fits(piece)) return {&flat, &piece};
      }
    }
    throw InternalError("a tensor is not one of the parameters of the stages");
  }
  [[nodiscard]] Place find_master(const at::Tensor& master) {
    return find([&](const Piece& piece) { return masters_[piece.master].second.is_same(master); });
  }
  [[nodiscard]] Place find_parameter(const at::Tensor& parameter) {
    return find([&](const Piece& piece) { return piece.parameter.is_same(parameter); });
  }

  /// A tensor like the parameter, with its elements in the order of the flat.
  [[nodiscard]] static at::Tensor new_like(const Piece& piece, const at::TensorOptions& options, at::Tensor& flat) {
    flat = at::empty({piece.size}, options);
    return shaped_like(flat, 0, piece.view);
  }

  [[nodiscard]] at::Tensor whole_of(const at::Tensor& master, const at::Tensor& part) {
    if (parts_ == 1) return part.detach();
    const at::NoGradGuard no_grad;
    const Piece& piece = *find_master(master).piece;
    const auto during = peers_->during("the parts of a parameter");
    at::Tensor flat;
    at::Tensor whole = new_like(piece, part.options().requires_grad(false), flat);
    flat.copy_(peers_->all_gather(part.detach().contiguous()));
    return whole;
  }

  [[nodiscard]] at::Tensor part_of(const at::Tensor& master, const at::Tensor& whole) {
    if (parts_ == 1) return whole;
    const at::NoGradGuard no_grad;
    const auto [flat, piece] = find_master(master);
    at::Tensor elements;
    new_like(*piece, whole.options().requires_grad(false), elements).copy_(whole);
    const std::int64_t begin = flat->shard_begin(peers_->place());
    const Piece::Part own = piece->within(begin, flat->shard_begin(peers_->place() + 1));
    const std::int64_t first = own.size == 0 ? 0 : begin + own.offset - piece->begin;
    return elements.narrow(0, first, own.size).clone();
  }

  NamedTensors masters_;
  std::vector<BesideRecord> records_;  // guarded by mutex_ while tasks are in flight
  [[nodiscard]] int parts() const { return parts_; }

 private:
  [[nodiscard]] bool frees() const { return options_.shard == Shard::kParameters; }

  /// Returns how many seconds it waited.
  double wait_for(Flat& flat, std::size_t stage) {
    if (flat.gathering == 0) return 0;
    const double begin = seconds_now();
    beside_.wait(std::exchange(flat.gathering, 0));
    const double waited = seconds_now() - begin;
    if (parts_ > 1) {
      const std::lock_guard lock(mutex_);
      records_.push_back({BesideRecord::Kind::kUnshard, stage, flat.gather_start, flat.gather_end, waited,
                          static_cast<std::int64_t>(flat.whole().nbytes())});
    }
    return waited;
  }

  // --- in the thread ---

  /// Calls visit(begin, size) for ranges of a shard of `count` elements, of which the ranges of all replicas together
  /// are a bucket.
  template <typename Visit>
  void in_buckets(std::int64_t count, std::size_t itemsize, const Visit& visit) const {
    const std::int64_t most =
        std::max<std::int64_t>(1, options_.bucket_bytes / (parts_ * static_cast<std::int64_t>(itemsize)));
    for (std::int64_t begin = 0; begin < count; begin += most) visit(begin, std::min(most, count - begin));
  }

  void gather(Flat& flat, std::size_t stage) {
    const at::NoGradGuard no_grad;
    if (parts_ == 1) {
      flat.whole().copy_(flat.shard());
      return;
    }
    flat.gather_start = seconds_now();
    const auto during = peers_->during(gathering_texts_[stage]);
    const std::int64_t size = flat.shard().numel();
    const at::Tensor by_replica = flat.whole().view({parts_, size});
    in_buckets(size, flat.whole().itemsize(), [&](std::int64_t begin, std::int64_t count) {
      const at::Tensor own = flat.shard().narrow(0, begin, count).to(flat.whole().scalar_type());
      by_replica.narrow(1, begin, count).copy_(peers_->all_gather(own).view({parts_, count}));
    });
    flat.gather_end = seconds_now();
  }

  void reduce(Flat& flat, BesideRecord& record) {
    if (peers_->size() == 1) return take_gradients(flat);
    Presence present;
    for (Piece& piece : flat.pieces) present.add(piece.name, flat.gradient_of(piece));
    present.share(*peers_);
    record.start = seconds_now();  // all replicas have started it
    if (!present.any()) return;
    const std::vector<at::Tensor> gradients = take_elements(flat, present);
    if (parts_ == 1) {
      average_in_place(flat, gradients, record);
      for (std::size_t i = 0; i < flat.pieces.size(); ++i) {
        if (present[i]) add_to_master(flat.pieces[i], plain(shaped_like(gradients[i], 0, flat.pieces[i].view)));
      }
      return;
    }
    const at::Tensor own = reduced(flat, gradients, record);
    for (std::size_t i = 0; i < flat.pieces.size(); ++i) {
      if (present[i]) add_to_master(flat.pieces[i], flat.part_of(flat.pieces[i], own));
    }
  }

  /// Without other replicas.
  void take_gradients(Flat& flat) {
    for (Piece& piece : flat.pieces) {
      at::Tensor gradient = std::exchange(flat.gradient_of(piece), {});
      if (!gradient.defined()) continue;
      if (beside_.stream()) gradient.record_stream(*beside_.stream());
      add_to_master(piece, gradient);
    }
  }

  /// The gradient of every piece as a vector, in the order that its elements have in the flat; zeros where only other
  /// replicas have one, undefined where nobody has.
  [[nodiscard]] std::vector<at::Tensor> take_elements(Flat& flat, const Presence& present) const {
    std::vector<at::Tensor> all;
    for (std::size_t i = 0; i < flat.pieces.size(); ++i) {
      Piece& piece = flat.pieces[i];
      const at::Tensor gradient = std::exchange(flat.gradient_of(piece), {});
      at::Tensor& elements = all.emplace_back();
      if (!gradient.defined()) {
        if (present[i]) elements = at::zeros({piece.size}, piece.view.options().dtype(flat.kind().master_type));
        continue;
      }
      if (beside_.stream()) gradient.record_stream(*beside_.stream());
      if (gradient.strides() == piece.view.strides() && gradient.is_non_overlapping_and_dense()) {
        elements = gradient.as_strided({piece.size}, {1});
      } else {
        new_like(piece, gradient.options(), elements).copy_(gradient);
      }
    }
    return all;
  }

  [[nodiscard]] at::ScalarType sent_type(const Flat& flat) const {
    return at::isFloatingType(flat.kind().master_type) && options_.reduce ? *options_.reduce : flat.kind().master_type;
  }

  // Buckets are filled one by one: a second copy of all gradients would need as much memory as the parameters.

  void average_in_place(const Flat& flat, const std::vector<at::Tensor>& gradients, BesideRecord& record) const {
    const at::ScalarType type = sent_type(flat);
    in_buckets(flat.whole().numel(), c10::elementSize(type), [&](std::int64_t begin, std::int64_t count) {
      const at::Tensor bucket = at::zeros({count}, flat.whole().options().dtype(type));
      for_each_overlap(flat, begin, bucket, gradients,
                       [](const at::Tensor& sent, const at::Tensor& gradient) { sent.copy_(gradient); });
      record.bytes += static_cast<std::int64_t>(bucket.nbytes());
      peers_->all_reduce(bucket, Reduction::kMean);
      for_each_overlap(flat, begin, bucket, gradients,
                       [](const at::Tensor& sent, const at::Tensor& gradient) { gradient.copy_(sent); });
    });
  }

  /// This replica's part of the average, in the masters' type.
  [[nodiscard]] at::Tensor reduced(const Flat& flat, const std::vector<at::Tensor>& gradients,
                                   BesideRecord& record) const {
    const at::ScalarType type = sent_type(flat);
    at::Tensor own = at::empty_like(flat.shard());
    in_buckets(own.numel(), c10::elementSize(type), [&](std::int64_t begin, std::int64_t count) {
      const at::Tensor rows = at::zeros({parts_, count}, own.options().dtype(type));
      for (int part = 0; part < parts_; ++part) {
        for_each_overlap(flat, flat.shard_begin(part) + begin, rows[part], gradients,
                         [](const at::Tensor& sent, const at::Tensor& gradient) { sent.copy_(gradient); });
      }
      record.bytes += static_cast<std::int64_t>(rows.nbytes());
      own.narrow(0, begin, count).copy_(peers_->reduce_scatter(rows, Reduction::kMean).view({count}));
    });
    return own;
  }

  /// Visits what lies in a range of the flat: parts of the range, and of the gradients.
  template <typename Visit>
  static void for_each_overlap(const Flat& flat, std::int64_t begin, const at::Tensor& range,
                               const std::vector<at::Tensor>& gradients, const Visit& visit) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Piece& piece = flat.pieces[i];
      const Piece::Part part = piece.within(begin, begin + range.numel());
      if (part.size == 0 || !gradients[i].defined()) continue;
      visit(range.narrow(0, part.offset, part.size),
            gradients[i].narrow(0, begin + part.offset - piece.begin, part.size));
    }
  }

  void add_to_master(const Piece& piece, const at::Tensor& gradient) {
    at::Tensor& kept = masters_[piece.master].second.mutable_grad();
    if (kept.defined()) {
      kept.add_(gradient);
    } else {
      kept = gradient;
    }
  }

  std::unique_ptr<Group> peers_;
  const std::vector<Stage>& stages_;
  MasterOptions options_;
  int parts_;
  ReplicaBuffers buffers_;
  std::vector<std::string> names_;  // of the masters
  std::vector<Flat> flats_;
  std::vector<std::uint32_t> versions_;  // of the masters, at the beginning of the last step
  std::vector<bool> is_used_;            // by stage: between unshard and reshard
  std::vector<std::string> gathering_texts_;
  std::vector<std::string> reducing_texts_;
  std::mutex mutex_;
  BesideThread beside_;  // the last: its tasks use all others
};

Masters::Masters(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
                 const MasterOptions& options, at::Device device, const std::vector<at::Tensor>& tied)
    : implementation_(std::make_unique<Implementation>(std::move(peers), stages, order, options, device, tied)) {}
Masters::~Masters() = default;
void Masters::make_equal() { implementation_->make_equal(); }
void Masters::reorder(const std::vector<std::size_t>& order) { implementation_->reorder(order); }
const NamedTensors& Masters::tensors() const { return implementation_->masters_; }
bool Masters::are_parts() const { return implementation_->parts() > 1; }
void Masters::begin_step(bool masters_may_have_changed) { implementation_->begin_step(masters_may_have_changed); }
void Masters::unshard(std::size_t stage) { implementation_->unshard(stage); }
double Masters::require(std::size_t stage) { return implementation_->require(stage); }
void Masters::reshard(std::size_t stage) { implementation_->reshard(stage); }
void Masters::release() { implementation_->release(); }
void Masters::collect(std::size_t stage) { implementation_->collect(stage); }
at::Tensor& Masters::gradient_of(const at::Tensor& parameter) {
  const auto place = implementation_->find_parameter(parameter);
  return place.flat->gradient_of(*place.piece);
}
at::Tensor Masters::zero_gradient_of(const at::Tensor& parameter) const {
  const auto place = implementation_->find_parameter(parameter);
  const at::Tensor& view = place.piece->view;
  return at::zeros_like(view, view.options().dtype(place.flat->kind().master_type));
}
void Masters::reduce(std::size_t stage) { implementation_->reduce(stage); }
void Masters::finish() { implementation_->finish(); }
void Masters::spread_buffers() { implementation_->spread_buffers(); }
void Masters::cancel() { implementation_->cancel(); }
void Masters::drop_gradients() { implementation_->drop_gradients(); }
at::Tensor Masters::master_of(const at::Tensor& parameter) const {
  return tensors()[implementation_->find_parameter(parameter).piece->master].second;
}
bool Masters::has(const at::Tensor& tensor) const {
  return std::any_of(tensors().begin(), tensors().end(),
                     [&](const auto& master) { return master.second.is_same(tensor); });
}
at::IntArrayRef Masters::sizes_of(const at::Tensor& master) const {
  return implementation_->find_master(master).piece->view.sizes();
}
at::Tensor Masters::whole_of(const at::Tensor& master, const at::Tensor& part) const {
  return implementation_->whole_of(master, part);
}
at::Tensor Masters::part_of(const at::Tensor& master, const at::Tensor& whole) const {
  return implementation_->part_of(master, whole);
}
const std::vector<BesideRecord>& Masters::records() const { return implementation_->records_; }

}  // namespace stagecraft
