#include "meeting.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "random_word.h"
#include "stagecraft/core/error.h"
#include "words_of.h"

namespace stagecraft {
namespace {

class Meeting {
 public:
  Meeting(::c10d::Store& store, RankId rank, int ranks, std::string folder, Timeout timeout)
      : store_(store), rank_(rank), ranks_(ranks), folder_(std::move(folder)), timeout_(timeout) {}

  std::vector<std::string> texts(const std::string& own) {
    RankId missing(0);
    try {
      store_.setTimeout(timeout_);
      const std::string call = random_word(kWord) + own;
      write(call_of(rank_), call);
      std::vector<std::string> calls = rank_ == RankId(0) ? lead(missing) : follow(call);
      for (std::string& one : calls) one.erase(0, kWord);
      return calls;
    } catch (const TransportError&) {
      throw;
    } catch (const std::exception& error) {
      throw unheard(missing, words_of(error));
    }
  }

 private:
  static constexpr std::size_t kWord = 16;

  [[nodiscard]] std::string call_of(RankId rank) const { return folder_ + "call/" + std::to_string(rank.value); }
  [[nodiscard]] std::string draft() const { return folder_ + "draft"; }
  [[nodiscard]] std::string agreed(const std::string& word, RankId rank) const {
    return folder_ + word + "/" + std::to_string(rank.value);
  }
  [[nodiscard]] std::string holds(const std::string& word) const { return folder_ + word + "/holds"; }

  void write(const std::string& key, const std::string& text) {
    store_.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
  }
  /// Nothing if nobody has written it yet.
  std::optional<std::string> read(const std::string& key) {
    if (!store_.check({key})) return std::nullopt;
    const std::vector<std::uint8_t> bytes = store_.get(key);
    return std::string(bytes.begin(), bytes.end());
  }

  /// Calls `is_there` until it is so. Throws TransportError when the time is up: `missing` has not come.
  template <typename IsThere>
  void wait(const RankId& missing, const IsThere& is_there) {
    constexpr auto kLongest = std::chrono::milliseconds(50);
    for (auto pause = std::chrono::milliseconds(1); !is_there(); pause = std::min(2 * pause, kLongest)) {
      if (Clock::now() >= until_) throw unheard(missing, "it has not come in time");
      std::this_thread::sleep_for(pause);
    }
  }

  /// What all ranks have called.
  std::vector<std::string> lead(RankId& missing) {
    std::vector<std::string> calls(static_cast<std::size_t>(ranks_));
    const auto takes_new_calls = [&] {
      bool is_new = false;
      for (int r = 0; r < ranks_; ++r) {
        std::string call = read(call_of(RankId(r))).value_or(std::string());
        std::string& known = calls[RankId(r).index()];
        is_new = is_new || call != known;
        known = std::move(call);
      }
      return is_new;
    };
    std::string word;
    wait(missing, [&] {
      if (takes_new_calls()) word.clear();
      const auto silent = std::find(calls.begin(), calls.end(), std::string());
      missing = RankId(silent - calls.begin());
      if (silent != calls.end()) return false;
      if (word.empty()) {
        word = random_word(kWord);
        write(draft(), word + in_one(calls));
      }
      for (missing = RankId(1); missing.value < ranks_; missing = missing + 1) {
        if (!store_.check({agreed(word, missing)})) return false;
      }
      return true;
    });
    write(holds(word), "");
    return calls;
  }

  std::vector<std::string> follow(const std::string& call) {
    std::string word;
    std::vector<std::string> calls;
    wait(RankId(0), [&] {
      const std::string latest = read(draft()).value_or(std::string());
      // Read before that, since rank 0 may be through with this draft by now, and at the next meeting.
      if (!word.empty() && store_.check({holds(word)})) return true;
      const bool is_new = !latest.empty() && (word.empty() || !latest.starts_with(word));
      if (!is_new) return false;
      const std::vector<std::string> drafted = in_parts(latest.substr(kWord));
      if (rank_.index() >= drafted.size() || drafted[rank_.index()] != call) return false;
      word = latest.substr(0, kWord);
      calls = drafted;
      write(agreed(word, rank_), "");
      return false;
    });
    return calls;
  }

  static std::string in_one(const std::vector<std::string>& texts) {
    std::string one;
    for (const std::string& text : texts) one += std::to_string(text.size()) + ' ' + text;
    return one;
  }
  static std::vector<std::string> in_parts(const std::string& one) {
    std::vector<std::string> texts;
    for (std::size_t at = 0; at < one.size();) {
      const std::size_t space = one.find(' ', at);
      const std::size_t size = std::stoul(one.substr(at, space - at));
      texts.push_back(one.substr(space + 1, size));
      at = space + 1 + size;
    }
    return texts;
  }

  [[nodiscard]] TransportError unheard(RankId of, const std::string& why) const {
    return {"rank " + std::to_string(rank_.value) + " has not heard of rank " + std::to_string(of.value) +
                " in the store of the launcher (" + why + "). Do all run this program?",
            of};
  }

  using Clock = std::chrono::steady_clock;
  ::c10d::Store& store_;
  RankId rank_;
  int ranks_;
  std::string folder_;
  Timeout timeout_;
  Clock::time_point until_ = Clock::now() + timeout_;
};

}  // namespace

std::vector<std::string> meet(::c10d::Store& store, RankId rank, int ranks, const std::string& folder, Timeout timeout,
                              const std::string& own) {
  return Meeting(store, rank, ranks, folder, timeout).texts(own);
}

}  // namespace stagecraft
