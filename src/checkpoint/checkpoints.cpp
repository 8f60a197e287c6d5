#include "stagecraft/checkpoint/checkpoints.h"

#include <algorithm>
#include <iostream>

#include "checkpoint_folder.h"
#include "file_thread.h"
#include "stagecraft/core/error.h"
#include "stagecraft/runtime/together.h"

namespace stagecraft {
namespace {

/// How often rank 0 tells the others that the file is not complete yet, so that their waits do not time out.
constexpr std::chrono::milliseconds kSignOfLife{1000};
/// How long a run that is ending has before another one complains that the folder is taken.
constexpr std::chrono::milliseconds kHandOver{5000};

constexpr const char* kBusy = "busy";
constexpr const char* kDone = "done";

std::string text_of(const FileError& error) { return std::string(error.what()).substr(error.path().size() + 2); }

}  // namespace

class Checkpoints::Implementation {
 public:
  Implementation(World& world, CheckpointsOptions options)
      : world_(world),
        options_(std::move(options)),
        writes_(world.world_rank().value == 0),
        group_(world.transport().new_group_id()) {
    Faults faults;
    together(world_, [&] {
      std::vector<std::string> own;
      if (options_.folder.empty()) own.emplace_back("folder is empty: say where checkpoints are written");
      if (options_.keep < 0) own.push_back("keep is " + std::to_string(options_.keep) + ": give 0 (all) or more");
      faults = merged(gather(world_, own));
      // Errors of all ranks name the folder that is written to.
      options_.folder = world_.everyone().broadcast({{}, options_.folder}, 0).header;
    });
    if (!faults.empty()) throw InvalidArgument("CheckpointsOptions: " + faults.text());
    folder_.emplace(options_.folder);
    on_rank_0([&] { folder_->make(); });
  }

  ~Implementation() {
    if (!thread_) return;
    world_.everyone().set_resting(true);
    while (!thread_->is_done_within(kSignOfLife)) {
    }
    world_.everyone().set_resting(false);
    if (thread_->failure()) std::cerr << "stagecraft: " + path_ + ": " + *thread_->failure() + "\n" << std::flush;
  }

  void save(const Pipeline& pipeline, const SaveOptions& options) {
    wait();
    check_step(options.step);
    const std::string path = folder_->path_of(options.step);
    on_rank_0([&] {
      folder_->take(std::min(kHandOver, world_.timeout() / 2));
      const std::vector<CheckpointFile> files = folder_->files();
      if (files.empty() || files.back().step <= options.step) return;
      throw FileError(files.back().path,
                      "it is of a later step than " + std::to_string(options.step) +
                          ", which is to be saved, and a resumed run would go on with it: remove it, "
                          "or give this run another folder");
    });
    Stock stock(world_, pipeline, options);
    stock.take(path);
    BundlePlan plan(stock.lines(), world_.replicas());
    std::vector<at::Tensor> mine;
    together(world_, [&] { mine = memory_.copy(plan, world_.world_rank(), stock.items()); });
    // All ranks have their copies: from here on training may go on, and nothing fails but the file.
    ++number_;
    is_pending_ = true;
    path_ = path;
    if (writes_) {
      FileJob job{path, stock.metadata(), stock.lines(), std::move(plan), std::move(mine), group_, number_};
      job.is_urgent = !options_.background;
      job.when_written = [this] { folder_->remove_old(options_.keep); };
      thread_ = std::make_unique<FileThread>(world_, std::move(job));
    } else {
      send(plan, mine);
    }
    if (!options_.background) wait();
  }

  void wait() {
    if (!is_pending_) return;
    std::string word;
    together(world_, [&] {
      const auto during = world_.everyone().during("the end of the background save of a checkpoint");
      do {
        if (writes_) word = word_of_thread();
        word = world_.everyone().broadcast({{}, word}, 0).header;
      } while (word == kBusy);
    });
    is_pending_ = false;
    thread_.reset();
    if (word != kDone) throw FileError(path_, word);
  }

  std::optional<std::string> latest() {
    wait();
    std::string path;
    on_rank_0([&] {
      const std::vector<CheckpointFile> files = folder_->files();
      if (!files.empty()) path = files.back().path;
    });
    together(world_, [&] { path = world_.everyone().broadcast({{}, path}, 0).header; });
    return path.empty() ? std::nullopt : std::optional(path);
  }

  World& world() { return world_; }

 private:
  /// Calls it on rank 0 alone; its FileError is thrown on all ranks.
  template <typename Call>
  void on_rank_0(const Call& call) {
    std::string path;
    std::string text;
    together(world_, [&] {
      if (writes_) {
        try {
          call();
        } catch (const FileError& error) {
          path = error.path();
          text = text_of(error);
        }
      }
      path = world_.everyone().broadcast({{}, path}, 0).header;
      text = world_.everyone().broadcast({{}, text}, 0).header;
    });
    if (!path.empty()) throw FileError(path, text);
  }

  void send(const BundlePlan& plan, const std::vector<at::Tensor>& mine) {
    std::size_t next = 0;
    for (std::size_t b = 0; b < plan.bundles().size(); ++b) {
      if (plan.bundles()[b].sender != world_.world_rank()) continue;
      const Tag tag = Tag::collective(group_, number_, static_cast<std::int32_t>(b));
      world_.transport().send_lasting(RankId(0), tag, {{mine[next++]}, ""});
    }
  }

  std::string word_of_thread() {
    // If another rank times out on this one, it should look at what the thread waits for.
    world_.everyone().set_resting(true);
    const bool is_done = thread_->is_done_within(std::min(kSignOfLife, world_.timeout() / 4));
    world_.everyone().set_resting(false);
    if (!is_done) return kBusy;
    return thread_->failure() ? *thread_->failure() : kDone;
  }

  void check_step(std::int64_t step) {
    Faults faults;
    together(world_, [&] {
      const auto all = gather(world_, {std::to_string(step)});
      for (std::size_t r = 1; r < all.size(); ++r) {
        if (all[r] == all[0]) continue;
        faults.add("rank " + std::to_string(r) + " saves step " + all[r][0] + ", but rank 0 saves step " + all[0][0] +
                   ": give all ranks the same");
      }
      if (all[0][0].starts_with('-')) faults.add("the step is " + all[0][0] + ": give 0 or more");
    });
    if (!faults.empty()) throw InvalidArgument("cannot save into " + options_.folder + ": " + faults.text());
  }

  World& world_;
  CheckpointsOptions options_;
  bool writes_;
  std::int32_t group_;
  std::optional<CheckpointFolder> folder_;
  BundleMemory memory_;
  std::int32_t number_ = 0;             // saves so far
  bool is_pending_ = false;             // the outcome of the last save is not known to all ranks
  std::string path_;                    // of the last save
  std::unique_ptr<FileThread> thread_;  // on rank 0
};

Checkpoints::Checkpoints(World& world, CheckpointsOptions options)
    : implementation_(std::make_unique<Implementation>(world, std::move(options))) {}
Checkpoints::~Checkpoints() = default;

void Checkpoints::save(const Pipeline& pipeline, const SaveOptions& options) {
  implementation_->save(pipeline, options);
}
void Checkpoints::wait() { implementation_->wait(); }
std::optional<std::string> Checkpoints::latest() { return implementation_->latest(); }

std::optional<std::int64_t> Checkpoints::load_latest(Pipeline& pipeline, const LoadOptions& options) {
  const std::optional<std::string> path = latest();
  if (!path) return std::nullopt;
  return load_checkpoint(implementation_->world(), pipeline, *path, options);
}

}  // namespace stagecraft
