#include "rank_threads.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "errors.h"
#include "stagecraft/runtime/launch.h"
#include "worlds.h"

namespace stagecraft::python {
namespace {

/// The world belongs to `run_ranks`, which also announces the end of the rank.
class ThreadWorld : public WorldBox {
 public:
  explicit ThreadWorld(World& world) : WorldBox(&world) {}

 private:
  void leave(const std::optional<std::string>& /*failure*/) override {}
};

/// One call of run_ranks.
class RankThreads {
 public:
  RankThreads(py::object program, int ranks)
      : program_(std::move(program)), results_(static_cast<std::size_t>(ranks)), failures_(results_.size()) {}

  /// Called with the GIL. The ranks run in other threads, so that this one, if it is Python's main thread, can take
  /// signals.
  py::list run(const LaunchOptions& options) {
    std::exception_ptr failure;
    std::thread launcher([&] {
      try {
        run_ranks(options, [this](World& world) { run_rank(world); });
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      is_done_ = true;
      done_.notify_all();
    });
    std::optional<PythonError> interrupted;
    {
      const py::gil_scoped_release no_gil;
      wait(interrupted);
      launcher.join();
    }
    if (interrupted) throw PythonError(*interrupted);
    throw_first();
    if (failure) std::rethrow_exception(failure);
    py::list results;
    for (const Owned& result : results_) results.append(result.get());
    return results;
  }

 private:
  struct Running {
    World* world = nullptr;
    unsigned long thread = 0;
  };

  void run_rank(World& world) {
    in_python([&] {
      const auto box = std::make_shared<ThreadWorld>(world);
      const std::size_t rank = world.world_rank().index();
      const Registration registration(*this, {&world, PyThread_get_thread_ident()}, *box);
      try {
        results_[rank] = Owned(program_(std::static_pointer_cast<WorldBox>(box)));
      } catch (py::error_already_set& error) {
        failures_[rank] = PythonError(error);
        throw PythonError(*failures_[rank]);
      }
    });
  }

  /// Lists a rank while its program runs; then ends its pipelines, which Python objects may outlive.
  class Registration {
   public:
    Registration(RankThreads& all, const Running& running, ThreadWorld& box) : all_(all), running_(running), box_(box) {
      const std::lock_guard lock(all_.mutex_);
      all_.running_.push_back(running_);
    }
    ~Registration() {
      const py::gil_scoped_release no_gil;
      {
        const std::lock_guard lock(all_.mutex_);
        std::erase_if(all_.running_, [&](const Running& other) { return other.world == running_.world; });
      }
      box_.close();
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    RankThreads& all_;
    Running running_;
    ThreadWorld& box_;
  };

  void wait(std::optional<PythonError>& interrupted) {
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, std::chrono::milliseconds(50), [this] { return is_done_; })) {
      lock.unlock();
      const bool is_first = !interrupted;
      try {
        in_python([] {
          if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        });
      } catch (const PythonError& error) {
        if (is_first) interrupted.emplace(error);
      }
      lock.lock();
      if (is_first && interrupted) end_all(lock);
    }
  }

  /// Ends the waits of all ranks, and raises KeyboardInterrupt where they run Python.
  void end_all(std::unique_lock<std::mutex>& lock) {
    std::vector<unsigned long> threads;
    for (const Running& rank : running_) {
      rank.world->transport().give_up({rank.world->world_rank(), std::string("interrupted")});
      threads.push_back(rank.thread);
    }
    lock.unlock();
    in_python([&] {
      for (const unsigned long thread : threads) PyThreadState_SetAsyncExc(thread, PyExc_KeyboardInterrupt);
    });
    lock.lock();
  }

  /// Prefers the failure of a rank that failed by itself over one that was aborted because of it.
  void throw_first() const {
    const py::object aborted = py::module_::import("stagecraft.torch._errors").attr("AbortedError");
    const std::optional<PythonError>* first = nullptr;
    for (const auto& failure : failures_) {
      if (!failure) continue;
      if (PyObject_IsInstance(failure->exception().ptr(), aborted.ptr()) == 0) throw PythonError(*failure);
      if (first == nullptr) first = &failure;
    }
    if (first != nullptr) throw PythonError(**first);
  }

  py::object program_;
  std::vector<Owned> results_;                        // by rank of the world
  std::vector<std::optional<PythonError>> failures_;  // the same
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::vector<Running> running_;
};

}  // namespace

void bind_rank_threads(py::module_& module) {
  module.def(
      "run_ranks",
      [](py::object program, int ranks, int replicas, int threads_per_rank, double timeout,
         std::vector<at::Device> devices) {
        LaunchOptions options;
        options.ranks = ranks;
        options.replicas = replicas;
        options.threads_per_rank = threads_per_rank;
        options.timeout = Timeout(static_cast<std::int64_t>(timeout * 1000));
        if (!devices.empty()) {
          options.device = [devices](RankId rank) { return devices[rank.index() % devices.size()]; };
        }
        const int all = ranks > 0 && replicas > 0 ? ranks * replicas : 0;
        return RankThreads(std::move(program), all).run(options);
      },
      py::arg("program"), py::arg("ranks"), py::arg("replicas"), py::arg("threads_per_rank"), py::arg("timeout"),
      py::arg("devices"));
}

}  // namespace stagecraft::python
