#include "temporary_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

namespace stagecraft::cli {
namespace {

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};

// The file that the signal handler deletes. A handler may only use lock-free atomics.
std::atomic<const char*> doomed = nullptr;
static_assert(std::atomic<const char*>::is_always_lock_free);

void delete_and_die(int signal) {
  if (const char* path = doomed.load()) ::unlink(path);
  ::raise(signal);  // SA_RESETHAND has restored the default action, so the parent sees the signal
}

void catch_ending_signals() {
  for (const int signal : kEndingSignals) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_DFL) continue;  // ignored, as under nohup, or already set here
    struct sigaction ours {};
    ours.sa_handler = delete_and_die;
    ours.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    ::sigaction(signal, &ours, nullptr);
  }
}

/// Blocks the signals while `doomed` does not match the file.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t ending;
    ::sigemptyset(&ending);
    for (const int signal : kEndingSignals) ::sigaddset(&ending, signal);
    ::sigprocmask(SIG_BLOCK, &ending, &before_);
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  ~SignalsHeld() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

TemporaryFile::TemporaryFile(const std::string& path) {
  catch_ending_signals();
  const SignalsHeld held;
  file_.emplace(path);
  doomed = file_->hidden_path().c_str();
}

void TemporaryFile::commit() {
  file_->finish();  // takes a while, so signals are not blocked here
  const SignalsHeld held;
  file_->commit();
  doomed = nullptr;
}

TemporaryFile::~TemporaryFile() {
  const SignalsHeld held;
  file_.reset();
  doomed = nullptr;
}

}  // namespace stagecraft::cli
