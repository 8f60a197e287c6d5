#include "file_thread.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/ParallelGuard.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "stagecraft/checkpoint/dtypes.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

/// The share of a core that the thread gets where training wants all of them: about a tenth.
constexpr int kNiceness = 10;

/// On Linux, niceness is one of the thread. Elsewhere it would be one of the process.
void leave_the_cores_to_training() {
#ifdef __linux__
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNiceness);
#endif
}

}  // namespace

FileThread::FileThread(World& world, FileJob job)
    : world_(world),
      job_(std::move(job)),
      here_(job_.plan.bundles().size()),
      is_fetched_(here_.size(), false),
      to_write_(here_.size()) {
  std::size_t own = 0;
  for (std::size_t b = 0; b < here_.size(); ++b) {
    const BundlePlan::Bundle& bundle = job_.plan.bundles()[b];
    to_write_[b] = bundle.pieces.size();
    if (bundle.sender != world_.world_rank()) continue;
    here_[b] = std::move(job_.own.at(own++));
    is_fetched_[b] = true;
  }
  thread_ = std::thread([this] { work(); });
}

FileThread::~FileThread() { thread_.join(); }

bool FileThread::is_done_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return is_done_; });
}

void FileThread::work() {
  if (!job_.is_urgent) leave_the_cores_to_training();
  const c10::ParallelGuard alone(true);
  const at::NoGradGuard no_grad;
  std::optional<std::string> failure;
  try {
    const c10::OptionalDeviceGuard device(world_.device());
    std::optional<LentStream> own;  // while it waits, it may receive for other threads, which want it on the device
    std::optional<c10::StreamGuard> stream;
    if (!world_.device().is_cpu()) stream.emplace(own.emplace(world_.device()).get());
    try {
      write();
    } catch (...) {
      drop_the_rest();
      throw;
    }
  } catch (const FileError& error) {
    const std::string text = error.what();
    const bool is_of_this_file = error.path() == job_.path;
    failure = is_of_this_file ? text.substr(job_.path.size() + 2) : text;
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = kUnknownException;
  }
  if (failure) {
    failure = is_written_ ? "it is complete, but an older one was not removed: " + *failure
                          : "it was to be written in the background, and was not: " + *failure +
                                "; older checkpoints are as they were: save again";
  }
  here_.clear();  // before the others are told that their memory is free again
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  is_done_ = true;
  changed_.notify_all();
}

void FileThread::write() {
  safetensors::Writer writer(job_.path, job_.plan.entries(), job_.metadata);
  std::size_t piece = 0;
  for (const safetensors::Entry& entry : job_.plan.entries()) write_entry(writer, piece, entry);
  writer.commit();
  is_written_ = true;
  if (job_.when_written) job_.when_written();
}

/// `piece` is the first piece of the entry, and is moved to that of the next.
void FileThread::write_entry(safetensors::Writer& writer, std::size_t& piece, const safetensors::Entry& entry) {
  const std::vector<BundlePiece>& pieces = job_.plan.pieces();
  const auto is_of_entry = [&](std::size_t p) {
    return p < pieces.size() && job_.plan.entries()[pieces[p].entry].name == entry.name;
  };
  const StockLine& line = job_.lines.at(entry.name);
  at::Tensor in_order;  // the data in the order of memory, where that is not the order of the file
  const bool reorders = !line.strides.empty() && line.elements() > 0;
  if (reorders) in_order = at::empty({static_cast<std::int64_t>(entry.bytes)}, at::kByte);
  std::size_t so_far = 0;
  for (; is_of_entry(piece); ++piece) {
    const BundlePiece& one = pieces[piece];
    const char* data = data_of(one);
    if (reorders) {
      std::memcpy(static_cast<char*>(in_order.mutable_data_ptr()) + so_far, data, one.bytes);
    } else {
      writer.write(entry, data, one.bytes);
    }
    so_far += one.bytes;
    if (--to_write_[one.bundle] == 0) here_[one.bundle].reset();
  }
  if (so_far != entry.bytes) throw InternalError("a checkpoint misses data of " + in_quotes(entry.name));
  if (!reorders) return;
  const auto type = *dtype_of(line.dtype);
  const at::Tensor whole = in_order.view(type).as_strided(line.shape, line.strides).contiguous();
  writer.write(entry, whole.const_data_ptr(), entry.bytes);
}

const char* FileThread::data_of(const BundlePiece& piece) {
  if (!is_fetched_[piece.bundle]) fetch(piece.bundle);
  return static_cast<const char*>(here_[piece.bundle].const_data_ptr()) + piece.begin;
}

void FileThread::fetch(std::size_t bundle) {
  const Purpose purpose{"a part of the checkpoint", {}, {}};
  const BundlePlan::Bundle& wanted = job_.plan.bundles()[bundle];
  const auto tag = [&](std::size_t b) {
    return Tag::collective(job_.group, job_.number, static_cast<std::int32_t>(b));
  };
  is_fetched_[bundle] = true;  // also if it fails: nobody asks again
  const auto receive = [&] {
    try {
      return world_.transport().receive_lasting(wanted.sender, tag(bundle), world_.timeout(), &purpose).tensors.at(0);
    } catch (const TimeoutError&) {
      is_fetched_[bundle] = false;
      silent_.insert(wanted.sender);  // each of its bundles would take as long
      throw;
    }
  };
  const at::Tensor received = receive();
  here_[bundle] = in_memory(received);
  if (here_[bundle].nbytes() != wanted.bytes)
    throw InternalError("a part of a checkpoint has another size than planned");
  // The next one travels while this one is written.
  for (std::size_t next = bundle + 1; next < here_.size(); ++next) {
    if (is_fetched_[next]) continue;
    world_.transport().post_receive(job_.plan.bundles()[next].sender, tag(next));
    break;
  }
}

/// The others hold what they have sent until it is received, and no failed step drops it.
void FileThread::drop_the_rest() {
  for (at::Tensor& bundle : here_) bundle.reset();  // first: what comes needs room
  for (std::size_t b = 0; b < here_.size(); ++b) {
    if (is_fetched_[b] || silent_.contains(job_.plan.bundles()[b].sender)) continue;
    try {
      fetch(b);
    } catch (const std::exception&) {
      // There was no room for it, and it is dropped; or the sender is gone, and so is what it has sent; or it is
      // silent.
    }
    here_[b].reset();
  }
}

}  // namespace stagecraft
