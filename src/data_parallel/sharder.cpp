#include "stagecraft/data_parallel/sharder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "beside_thread.h"
#include "replica_buffers.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/measurement.h"

namespace stagecraft {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes; that of LibTorch's own tensors

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// A parameter in a flat tensor.
struct Piece {
  std::string name;
  at::Tensor parameter;  // the module's own
  at::Tensor view;       // of the flat: what the parameter is while it is whole
  std::int64_t begin = 0;
  std::int64_t size = 0;
  std::size_t master = 0;  // index among the masters

  /// The part of it that lies in [begin, end) of the flat, relative to `begin`.
  struct Part {
    std::int64_t offset;
    std::int64_t size;
  };
  [[nodiscard]] Part within(std::int64_t from, std::int64_t to) const {
    const std::int64_t first = std::max(begin, from);
    const std::int64_t last = std::min(begin + size, to);
    return first < last ? Part{first - from, last - first} : Part{0, 0};
  }
};

/// Parameters of one dtype that the same stages use, one after the other in one tensor.
struct Flat {
  std::vector<Piece> pieces;
  std::vector<std::size_t> stages;
  bool is_tied = false;
  std::size_t reduced_with = 0;  // the stage whose gradients are complete last
  at::Tensor whole;
  at::Tensor shard;  // this replica's part of the masters
  int users = 0;     // stages that have unsharded it
  bool is_stale = true;
  bool has_memory = true;
  BesideThread::Ticket gathering = 0;  // 0: nothing to wait for

  [[nodiscard]] std::int64_t shard_size() const { return shard.numel(); }
  [[nodiscard]] std::int64_t shard_begin(int place) const { return shard_size() * place; }
};

/// Takes the memory of a storage away. Views of it, such as those that autograd has saved, keep the storage, and find
/// the data again after `give_memory`.
void take_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
}

void give_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  at::Tensor fresh = at::empty({static_cast<std::int64_t>(storage->nbytes())}, tensor.options().dtype(at::kByte));
  storage->set_data_ptr_noswap(std::move(fresh.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
}

/// A view of a piece of a flat tensor with the shape of a parameter; keeps the order of its elements in memory, such as
/// channels_last.
at::Tensor shaped_like(const at::Tensor& flat, std::int64_t begin, const at::Tensor& parameter) {
  const bool keeps_strides = parameter.is_non_overlapping_and_dense();
  return flat.as_strided(parameter.sizes(),
                         keeps_strides ? parameter.strides() : at::empty(parameter.sizes(), at::kMeta).strides(),
                         begin);
}

/// Gives a tensor the data of another one, in place: all holders see the change, and autograd none.
void become(const at::Tensor& tensor, const at::Tensor& other) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
}

/// The same memory, but not a view for autograd: optimizers change parameters and gradients in ways that views forbid.
at::Tensor plain(const at::Tensor& view) { return view.variable_data(); }

}  // namespace

class Sharder::Implementation {
 public:
  Implementation(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
                 Shard kind, std::int64_t bucket_bytes, at::Device device, const std::vector<at::Tensor>& tied)
      : peers_(std::move(peers)),
        stages_(stages),
        kind_(kind),
        bucket_bytes_(bucket_bytes),
        device_(device),
        buffers_(*peers_, stages),
        is_used_(stages.size(), false),
        beside_(*peers_, device) {
    make_flats(tied);
    reorder(order);
    for (const Stage& stage : stages) {
      const std::string text = " of stage " + std::to_string(stage.index().value);
      gathering_texts_.push_back("the parameters" + text);
      reducing_texts_.push_back("the average of the gradients" + text);
    }
    reducing_texts_.emplace_back("the average of the gradients of tied parameters");
  }

  ~Implementation() { beside_.rest(); }

  // --- making ---

  void make_flats(const std::vector<at::Tensor>& tied) {
    const auto is_tied = [&](const at::Tensor& parameter) {
      return std::any_of(tied.begin(), tied.end(), [&](const at::Tensor& one) { return one.is_same(parameter); });
    };
    std::vector<at::Tensor> known;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      for (const auto& [name, parameter] : stages_[stage].parameters()) {
        if (!parameter.defined()) continue;
        const auto same = [&own = parameter](const at::Tensor& other) { return other.is_same(own); };
        if (std::any_of(known.begin(), known.end(), same)) continue;
        known.push_back(parameter);
        names_.push_back(name);
        add_to_flat(name, parameter, is_tied(parameter));
      }
    }
    masters_.resize(names_.size());
    for (Flat& flat : flats_) lay_out(flat);
  }

  void add_to_flat(const std::string& name, const at::Tensor& parameter, bool is_tied) {
    std::vector<std::size_t> users;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      for (const auto& [other_name, other] : stages_[stage].parameters()) {
        if (!other.is_same(parameter)) continue;
        users.push_back(stage);
        break;
      }
    }
    const auto fits = [&](const Flat& flat) {
      return flat.stages == users && flat.is_tied == is_tied &&
             flat.pieces.front().parameter.scalar_type() == parameter.scalar_type();
    };
    auto found = std::find_if(flats_.begin(), flats_.end(), fits);
    if (found == flats_.end()) {
      Flat& made = flats_.emplace_back();
      made.stages = users;
      made.is_tied = is_tied;
      found = flats_.end() - 1;
    }
    found->pieces.push_back({name, parameter, {}, 0, parameter.numel(), names_.size() - 1});
  }

  /// Puts the parameters into one tensor, of which they become views.
  void lay_out(Flat& flat) {
    const at::NoGradGuard no_grad;
    const auto itemsize = static_cast<std::int64_t>(flat.pieces.front().parameter.itemsize());
    const std::int64_t unit = std::max<std::int64_t>(1, kAlignment / itemsize);
    std::int64_t size = 0;
    for (Piece& piece : flat.pieces) {
      piece.begin = size;
      size = rounded_up(size + piece.size, unit);
    }
    size = rounded_up(std::max<std::int64_t>(size, 1), unit * peers_->size());
    const at::Tensor& first = flat.pieces.front().parameter;
    flat.whole = at::zeros({size}, first.options().requires_grad(false));
    flat.shard = at::zeros({size / peers_->size()}, flat.whole.options());
    for (Piece& piece : flat.pieces) {
      const at::Tensor view = shaped_like(flat.whole, piece.begin, piece.parameter);
      view.copy_(piece.parameter);
      piece.parameter.set_data(view);
      piece.view = view;
      const Piece::Part own = piece.within(flat.shard_begin(peers_->place()), flat.shard_begin(peers_->place() + 1));
      at::Tensor master = plain(flat.shard.narrow(0, own.offset, own.size));
      if (piece.parameter.requires_grad()) master.set_requires_grad(true);
      masters_[piece.master] = {piece.name, master};
    }
  }

  [[nodiscard]] at::Tensor own_range(const Flat& flat) const {
    return flat.whole.narrow(0, flat.shard_begin(peers_->place()), flat.shard_size());
  }

  void make_equal() {
    make_stages_equal(*peers_, stages_);
    const at::NoGradGuard no_grad;
    for (Flat& flat : flats_) {
      flat.shard.copy_(own_range(flat));
      flat.is_stale = false;
      if (kind_ == Shard::kParameters) free(flat);
    }
  }

  void reorder(const std::vector<std::size_t>& order) {
    for (Flat& flat : flats_) {
      flat.reduced_with = flat.stages.back();
      for (const std::size_t stage : order) {
        if (std::find(flat.stages.begin(), flat.stages.end(), stage) != flat.stages.end()) flat.reduced_with = stage;
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
    for (Flat& flat : flats_) flat.is_stale = true;
  }

  template <typename Visit>
  void for_each_flat(std::size_t stage, const Visit& visit) {
    for (Flat& flat : flats_) {
      if (std::find(flat.stages.begin(), flat.stages.end(), stage) != flat.stages.end()) visit(flat);
    }
  }

  void unshard(std::size_t stage) {
    if (is_used_[stage]) return;
    is_used_[stage] = true;
    for_each_flat(stage, [&](Flat& flat) {
      if (++flat.users > 1 || !flat.is_stale) return;
      if (!flat.has_memory) provide(flat);
      flat.is_stale = false;
      flat.gathering = beside_.start("while " + gathering_texts_[stage] + " were gathered from the replicas",
                                     [this, &flat, stage] { gather(flat, stage); });
    });
  }

  void require(std::size_t stage) {
    if (!is_used_[stage]) unshard(stage);
    for_each_flat(stage, [&](Flat& flat) {
      if (flat.gathering != 0) beside_.wait(std::exchange(flat.gathering, 0));
    });
  }

  void reshard(std::size_t stage) {
    if (!is_used_[stage]) return;
    is_used_[stage] = false;
    for_each_flat(stage, [&](Flat& flat) {
      if (--flat.users > 0 || kind_ != Shard::kParameters) return;
      if (flat.gathering != 0) beside_.wait(std::exchange(flat.gathering, 0));  // it was not needed after all
      free(flat);
    });
  }

  void release() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) reshard(stage);
  }

  /// Without memory, parameters are on the meta device: they have a shape, and whoever reads them gets an error.
  static void free(Flat& flat) {
    for (Piece& piece : flat.pieces) {
      become(piece.parameter,
             at::empty_strided(piece.view.sizes(), piece.view.strides(), piece.view.options().device(at::kMeta)));
    }
    take_memory(flat.whole);
    flat.has_memory = false;
    flat.is_stale = true;
  }

  static void provide(Flat& flat) {
    give_memory(flat.whole);
    for (Piece& piece : flat.pieces) become(piece.parameter, piece.view);
    flat.has_memory = true;
  }

  // --- gradients ---

  /// Tied parameters are not reduced with a stage.
  void reduce(std::size_t stage) {
    const bool of_tied = stage == stages_.size();
    const std::string whose = of_tied ? "tied parameters" : "stage " + std::to_string(stages_[stage].index().value);
    beside_.start("while the gradients of " + whose + " were averaged over the replicas", [this, stage, of_tied] {
      Averager::Record record{stage, seconds_now(), 0, 0, 0};
      const auto during = peers_->during(reducing_texts_[stage]);
      for (Flat& flat : flats_) {
        if (flat.is_tied == of_tied && (of_tied || flat.reduced_with == stage)) reduce(flat, record);
      }
      if (!of_tied) buffers_.spread(stage);
      record.end = seconds_now();
      const std::lock_guard lock(mutex_);
      if (!of_tied) records_.push_back(record);
    });
  }

  void finish() {
    const double begin = seconds_now();
    beside_.finish();
    for (Averager::Record& record : records_) {
      record.waited = std::max(0.0, record.end - std::max(record.start, begin));
    }
  }

  void cancel() {
    beside_.rest();
    for (Flat& flat : flats_) flat.gathering = 0;
    // What a gathering has left is unknown.
    expire();
    release();
    drop_gradients();
  }

  void drop_gradients() {
    for (Flat& flat : flats_) {
      for (Piece& piece : flat.pieces) piece.parameter.mutable_grad().reset();
    }
  }

  // --- checkpoints ---

  struct Place {
    const Flat* flat;
    const Piece* piece;
  };
  [[nodiscard]] Place find(const at::Tensor& master) const {
    for (const Flat& flat : flats_) {
      for (const Piece& piece : flat.pieces) {
        if (masters_[piece.master].second.is_same(master)) return {&flat, &piece};
      }
    }
    throw InternalError("a tensor is not one of the sharded parameters");
  }

  [[nodiscard]] at::Tensor master_of(const at::Tensor& parameter) const {
    for (const Flat& flat : flats_) {
      for (const Piece& piece : flat.pieces) {
        if (piece.parameter.is_same(parameter)) return masters_[piece.master].second;
      }
    }
    throw InternalError("a tensor is not a parameter of a stage");
  }

  /// A tensor like the parameter, with its elements in the order of the flat.
  [[nodiscard]] static at::Tensor new_like(const Piece& piece, const at::TensorOptions& options, at::Tensor& flat) {
    flat = at::empty({piece.size}, options);
    return shaped_like(flat, 0, piece.view);
  }

  [[nodiscard]] at::Tensor whole_of(const at::Tensor& master, const at::Tensor& part) const {
    const at::NoGradGuard no_grad;
    const Piece& piece = *find(master).piece;
    const auto during = peers_->during("the parts of a parameter");
    at::Tensor flat;
    at::Tensor whole = new_like(piece, part.options().requires_grad(false), flat);
    flat.copy_(peers_->all_gather(part.detach().contiguous()));
    return whole;
  }

  [[nodiscard]] at::Tensor part_of(const at::Tensor& master, const at::Tensor& whole) const {
    const at::NoGradGuard no_grad;
    const auto [flat, piece] = find(master);
    at::Tensor elements;
    new_like(*piece, whole.options().requires_grad(false), elements).copy_(whole);
    const std::int64_t begin = flat->shard_begin(peers_->place());
    const Piece::Part own = piece->within(begin, begin + flat->shard_size());
    const std::int64_t first = own.size == 0 ? 0 : begin + own.offset - piece->begin;
    return elements.narrow(0, first, own.size).clone();
  }

  NamedTensors masters_;
  std::vector<Averager::Record> records_;  // guarded by mutex_ while tasks are in flight

 private:
  // --- in the thread ---

  /// Elements of a shard that are communicated at once.
  [[nodiscard]] std::int64_t chunk_of(const Flat& flat) const {
    return std::max<std::int64_t>(1, bucket_bytes_ / static_cast<std::int64_t>(flat.whole.itemsize()));
  }

  void gather(Flat& flat, std::size_t stage) {
    const auto during = peers_->during(gathering_texts_[stage]);
    const at::Tensor by_replica = flat.whole.view({peers_->size(), flat.shard_size()});
    const std::int64_t chunk = chunk_of(flat);
    for (std::int64_t at = 0; at < flat.shard_size(); at += chunk) {
      const std::int64_t size = std::min(chunk, flat.shard_size() - at);
      const at::Tensor all = peers_->all_gather(flat.shard.narrow(0, at, size));
      by_replica.narrow(1, at, size).copy_(all.view({peers_->size(), size}));
    }
  }

  void reduce(Flat& flat, Averager::Record& record) {
    const std::string present = presence(flat);
    record.start = seconds_now();  // all replicas have started it
    if (present.find('1') == std::string::npos) return;
    at::Tensor gradients = at::zeros_like(flat.whole);
    for (std::size_t i = 0; i < flat.pieces.size(); ++i) {
      Piece& piece = flat.pieces[i];
      at::Tensor gradient = std::move(piece.parameter.mutable_grad());
      piece.parameter.mutable_grad().reset();
      if (!gradient.defined()) continue;
      shaped_like(gradients, piece.begin, piece.view).copy_(gradient);
      if (beside_.stream()) gradient.record_stream(*beside_.stream());
    }
    record.bytes += static_cast<std::int64_t>(gradients.nbytes());
    const at::Tensor by_replica = gradients.view({peers_->size(), flat.shard_size()});
    at::Tensor own = at::empty_like(flat.shard);
    const std::int64_t chunk = chunk_of(flat);
    for (std::int64_t at = 0; at < flat.shard_size(); at += chunk) {
      const std::int64_t size = std::min(chunk, flat.shard_size() - at);
      const at::Tensor rows = by_replica.narrow(1, at, size).contiguous();
      own.narrow(0, at, size).copy_(peers_->reduce_scatter(rows, Reduction::kMean).view({size}));
    }
    give_to_masters(flat, present, own);
  }

  void give_to_masters(Flat& flat, const std::string& present, const at::Tensor& own) {
    const std::int64_t begin = flat.shard_begin(peers_->place());
    for (std::size_t i = 0; i < flat.pieces.size(); ++i) {
      if (present[i] == '0') continue;
      const Piece::Part part = flat.pieces[i].within(begin, begin + flat.shard_size());
      const at::Tensor gradient = plain(own.narrow(0, part.offset, part.size));
      at::Tensor& kept = masters_[flat.pieces[i].master].second.mutable_grad();
      if (kept.defined()) {
        kept.add_(gradient);
      } else {
        kept = gradient;
      }
    }
  }

  /// By piece: whether some replica has a gradient.
  std::string presence(const Flat& flat) {
    std::string some;
    for (const Piece& piece : flat.pieces) {
      const at::Tensor& gradient = piece.parameter.grad();
      some += gradient.defined() ? '1' : '0';
      if (!gradient.defined() || !gradient.is_sparse()) continue;
      throw InvalidArgument("the gradient of " + piece.name +
                            " is sparse, and replicas average dense ones: make the layer with sparse(false)");
    }
    for (const Message& message : peers_->all_gather(Message{{}, some})) {
      for (std::size_t i = 0; i < some.size(); ++i) {
        if (message.header.at(i) == '1') some[i] = '1';
      }
    }
    return some;
  }

  std::unique_ptr<Group> peers_;
  const std::vector<Stage>& stages_;
  Shard kind_;
  std::int64_t bucket_bytes_;
  at::Device device_;
  ReplicaBuffers buffers_;
  std::vector<std::string> names_;       // of the masters
  std::vector<std::uint32_t> versions_;  // of the masters, at the beginning of the last step
  std::vector<Flat> flats_;
  std::vector<bool> is_used_;  // by stage: between unshard and reshard
  std::vector<std::string> gathering_texts_;
  std::vector<std::string> reducing_texts_;
  std::mutex mutex_;
  BesideThread beside_;  // the last: its tasks use all others
};

Sharder::Sharder(std::unique_ptr<Group> peers, const std::vector<Stage>& stages, const std::vector<std::size_t>& order,
                 Shard kind, std::int64_t bucket_bytes, at::Device device, const std::vector<at::Tensor>& tied)
    : implementation_(
          std::make_unique<Implementation>(std::move(peers), stages, order, kind, bucket_bytes, device, tied)) {}
Sharder::~Sharder() = default;
void Sharder::make_equal() { implementation_->make_equal(); }
void Sharder::reorder(const std::vector<std::size_t>& order) { implementation_->reorder(order); }
const NamedTensors& Sharder::masters() const { return implementation_->masters_; }
void Sharder::begin_step(bool masters_may_have_changed) { implementation_->begin_step(masters_may_have_changed); }
void Sharder::unshard(std::size_t stage) { implementation_->unshard(stage); }
void Sharder::require(std::size_t stage) { implementation_->require(stage); }
void Sharder::reshard(std::size_t stage) { implementation_->reshard(stage); }
void Sharder::release() { implementation_->release(); }
void Sharder::reduce(std::size_t stage) { implementation_->reduce(stage); }
void Sharder::finish() { implementation_->finish(); }
void Sharder::cancel() { implementation_->cancel(); }
void Sharder::drop_gradients() { implementation_->drop_gradients(); }
at::Tensor Sharder::master_of(const at::Tensor& parameter) const { return implementation_->master_of(parameter); }
bool Sharder::has(const at::Tensor& tensor) const {
  return std::any_of(masters().begin(), masters().end(),
                     [&](const auto& master) { return master.second.is_same(tensor); });
}
at::IntArrayRef Sharder::sizes_of(const at::Tensor& master) const {
  return implementation_->find(master).piece->view.sizes();
}
at::Tensor Sharder::whole_of(const at::Tensor& master, const at::Tensor& part) const {
  return implementation_->whole_of(master, part);
}
at::Tensor Sharder::part_of(const at::Tensor& master, const at::Tensor& whole) const {
  return implementation_->part_of(master, whole);
}
const std::vector<Averager::Record>& Sharder::records() const { return implementation_->records_; }

}  // namespace stagecraft
