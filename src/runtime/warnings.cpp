#include "warnings.h"

#include <mutex>
#include <string>
#include <unordered_set>

namespace stagecraft {
namespace {

/// Without the stack of an exception that LibTorch has caught and quotes.
std::string without_stack(const std::string& text) {
  std::string kept = text.substr(0, text.find("\nException raised from "));
  for (char& c : kept) {
    if (c == '\n') c = ' ';
  }
  while (!kept.empty() && kept.back() == ' ') kept.pop_back();
  return kept;
}

class BriefWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::string text = without_stack(warning.msg());
    {
      const std::lock_guard lock(mutex_);
      if (!given_.insert(text).second) return;
    }
    c10::WarningHandler::process({warning.type(), warning.source_location(), text, warning.verbatim()});
  }

 private:
  std::mutex mutex_;
  std::unordered_set<std::string> given_;
};

}  // namespace

c10::WarningHandler& brief_warnings() {
  static auto& handler = *new BriefWarnings;  // threads may still warn while the process ends
  return handler;
}

}  // namespace stagecraft
