#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "stagecraft/plan/partition.h"

/// A plan that is searched for on a thread of its own, so that the caller can look after Python meanwhile.
namespace stagecraft::python {

class Search {
 public:
  /// Starts the thread. It goes on by itself until it has ended, also when the Search is gone.
  Search(PlanRequest request, std::vector<Layer> layers);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;
  /// Asks the thread to end, and does not wait for it.
  ~Search();

  /// Waits for progress or the end, at most so long. Returns whether the search has ended.
  bool wait(double seconds);
  /// Asks the search to end with the best schedule so far.
  void stop();
  /// The latest progress since the last call.
  std::optional<PlanProgress> progress();

  struct Found {
    PlanRequest request;  ///< With the costs of the stages, where layers were cut.
    PlanResult result;
    Cuts cuts;
  };
  /// After the end, once: what was found. Throws what the planner has thrown.
  Found found();

 private:
  struct Shared;
  static void run(Shared& shared, const std::vector<Layer>& layers);

  std::shared_ptr<Shared> shared_;
};

}  // namespace stagecraft::python
