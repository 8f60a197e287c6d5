#include "temporary_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "fd_writer.h"

namespace stagecraft::cli {
namespace {

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};

// What the signal handler deletes; a handler may read nothing but lock-free atomics.
std::atomic<const char*> doomed = nullptr;
static_assert(std::atomic<const char*>::is_always_lock_free);

void delete_and_die(int signal) {
  if (const char* path = doomed.load()) ::unlink(path);
  ::raise(signal);  // SA_RESETHAND has put the default action back: the parent sees which signal it was
}

void catch_ending_signals() {
  for (const int signal : kEndingSignals) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_DFL) continue;  // ignored, as under nohup, or already ours
    struct sigaction ours {};
    ours.sa_handler = delete_and_die;
    ours.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    ::sigaction(signal, &ours, nullptr);
  }
}

/// Holds signals back while file and `doomed` disagree.
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

mode_t mode_of_new_files() {
  const mode_t mask = ::umask(0);  // the only way to read it
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

TemporaryFile::TemporaryFile(std::string target, std::string name, const struct stat* existing)
    : target_(std::move(target)), name_(std::move(name)) {
  catch_ending_signals();
  path_ = (std::filesystem::path(target_).parent_path() / ".stagecraft-").string() +
          std::string(6, 'X');  // what mkostemp fills in
  {
    const SignalsHeld held;
    fd_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (fd_ < 0) refuse_output(name_, errno);
    doomed = path_.c_str();
  }
  try {
    take_over(existing);
  } catch (...) {
    discard();
    throw;
  }
}

void TemporaryFile::take_over(const struct stat* existing) {
  // Only root can give files away; for anyone else the file simply becomes theirs.
  if (existing != nullptr && ::fchown(fd_, existing->st_uid, existing->st_gid) != 0) errno = 0;
  const mode_t mode = existing != nullptr ? existing->st_mode & 07777 : mode_of_new_files();
  if (::fchmod(fd_, mode) != 0) refuse_output(name_, errno);
}

void TemporaryFile::commit() {
  // EINVAL: this file system has nothing to sync.
  if (::fsync(fd_) != 0 && errno != EINVAL) refuse_output(name_, errno);
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) refuse_output(name_, errno);
  const SignalsHeld held;
  if (::rename(path_.c_str(), target_.c_str()) != 0) refuse_output(name_, errno);
  doomed = nullptr;
  path_.clear();
}

void TemporaryFile::discard() {
  const SignalsHeld held;
  if (fd_ >= 0) ::close(fd_);
  if (!path_.empty()) ::unlink(path_.c_str());
  doomed = nullptr;
}

TemporaryFile::~TemporaryFile() { discard(); }

}  // namespace stagecraft::cli
