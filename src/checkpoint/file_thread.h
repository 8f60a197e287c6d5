#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "bundles.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft {

/// What one checkpoint file is made of, on rank 0.
struct FileJob {
  std::string path;
  safetensors::Metadata metadata;
  std::map<std::string, StockLine> lines;
  BundlePlan plan;
  std::vector<at::Tensor> own;              // rank 0's bundles, in their order
  std::int32_t group = 0;                   // bundle b of this save is the message Tag::collective(group, number, b)
  std::int32_t number = 0;                  // of this save
  bool is_urgent = false;                   // nothing else goes on meanwhile
  std::function<void()> when_written = {};  // called in the thread, after the file has appeared
};

/// A thread of rank 0 that fetches the bundles of a checkpoint and writes the file, beside training.
class FileThread {
 public:
  /// Starts. The world must outlive it.
  FileThread(World& world, FileJob job);
  /// Waits until it is done.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  /// Whether it is done, or will be within the time.
  bool is_done_within(std::chrono::milliseconds time);
  /// What went wrong, once it is done: a sentence about the file.
  [[nodiscard]] const std::optional<std::string>& failure() const { return failure_; }

 private:
  void work();
  void write();
  void write_entry(safetensors::Writer& writer, std::size_t& piece, const safetensors::Entry& entry);
  const char* data_of(const BundlePiece& piece);
  void fetch(std::size_t bundle);
  void drop_the_rest();

  World& world_;
  FileJob job_;
  std::vector<at::Tensor> here_;  // by bundle: those that are here and not yet written
  std::vector<bool> is_fetched_;  // by bundle
  std::set<RankId> silent_;       // senders that were waited for in vain
  bool is_written_ = false;
  std::vector<std::size_t> to_write_;  // by bundle: pieces that are not yet written

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;
  std::optional<std::string> failure_;  // set before is_done_
  std::thread thread_;
};

}  // namespace stagecraft
