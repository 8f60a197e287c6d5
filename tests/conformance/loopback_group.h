#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

/// A c10d process group between threads, with what the c10d transport uses: send and receive by tag, a maximum, and
/// connections that break. Gloo's groups can be made only from Python.
namespace stagecraft::conformance {

class Loopback {
 public:
  explicit Loopback(int ranks) : ranks_(ranks) {}

  void put(int from, int to, int tag, const at::Tensor& bytes) {
    const std::lock_guard lock(mutex_);
    messages_[{from, to, tag}].push_back(bytes.clone());
    changed_.notify_all();
  }
  /// Receives are numbered when they are posted, and get the messages in that order.
  std::uint64_t post(int from, int to, int tag) {
    const std::lock_guard lock(mutex_);
    return posted_[{from, to, tag}]++;
  }
  void get(int from, int to, int tag, std::uint64_t number, const at::Tensor& into) {
    std::unique_lock lock(mutex_);
    const Key key{from, to, tag};
    changed_.wait(lock, [&] { return taken_[key] == number && !messages_[key].empty(); });
    const at::Tensor bytes = messages_[key].front();
    messages_[key].pop_front();
    ++taken_[key];
    changed_.notify_all();
    std::memcpy(into.data_ptr(), bytes.const_data_ptr(), bytes.nbytes());
  }
  void maximum(const at::Tensor& tensor) {
    std::unique_lock lock(mutex_);
    const std::uint64_t round = round_;
    best_ = best_.defined() ? at::maximum(best_, tensor) : tensor.clone();
    if (++arrived_ == ranks_) {
      result_ = best_;
      best_ = at::Tensor();
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    tensor.copy_(result_);
  }

 private:
  using Key = std::tuple<int, int, int>;
  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::deque<at::Tensor>> messages_;
  std::map<Key, std::uint64_t> posted_, taken_;
  at::Tensor best_, result_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
};

class LoopbackWork : public ::c10d::Work {
 public:
  explicit LoopbackWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (finish_) std::exchange(finish_, nullptr)();
    return true;
  }

 private:
  std::function<void()> finish_;
};

class LoopbackGroup : public ::c10d::ProcessGroup {
 public:
  LoopbackGroup(std::shared_ptr<Loopback> loopback, int rank, int ranks)
      : ProcessGroup(rank, ranks), loopback_(std::move(loopback)) {}

  c10::intrusive_ptr<::c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    loopback_->put(getRank(), to, tag, tensors.at(0));
    return c10::make_intrusive<LoopbackWork>(nullptr);
  }
  c10::intrusive_ptr<::c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    const std::uint64_t number = loopback_->post(from, getRank(), tag);
    return c10::make_intrusive<LoopbackWork>([loopback = loopback_, rank = getRank(), from, tag, number,
                                              into = tensors.at(0)] { loopback->get(from, rank, tag, number, into); });
  }
  c10::intrusive_ptr<::c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                             const ::c10d::AllreduceOptions& /*options*/) override {
    loopback_->maximum(tensors.at(0));
    return c10::make_intrusive<LoopbackWork>(nullptr);
  }

 private:
  std::shared_ptr<Loopback> loopback_;
};

}  // namespace stagecraft::conformance
