#include "output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <ostream>
#include <streambuf>

#include "failure.h"
#include "stagecraft/file/whole_file.h"

namespace stagecraft::cli {
namespace {

std::string reason(int error) {
  if (error == EBADF) return "cannot write it: standard output is closed, so write to a file with -o";
  if (error == EPIPE) return "cannot write it: Broken pipe: nobody reads any more";
  return cannot_write(error);
}

/// Throws a Failure for an output that cannot be written, with the remedy for this errno.
[[noreturn]] void refuse_output(const std::string& name, int error) {
  throw Failure(kUnusable, name + ": " + reason(error));
}

/// A stream buffer for a file descriptor that it does not own. Throws Failure as soon as a write fails, so that a full
/// disk is detected at the first block that does not fit.
class FdWriter : public std::streambuf {
 public:
  FdWriter(int fd, std::string name);

 protected:
  int_type overflow(int_type c) override;
  int sync() override;

 private:
  void drain();

  int fd_;
  std::string name_;
  std::array<char, 65536> buffer_;
};

FdWriter::FdWriter(int fd, std::string name) : fd_(fd), name_(std::move(name)) {
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

void FdWriter::drain() {
  const char* from = pbase();
  while (from < pptr()) {
    const ssize_t written = ::write(fd_, from, static_cast<std::size_t>(pptr() - from));
    if (written > 0) from += written;
    if (written < 0 && errno != EINTR) {
      const int error = errno;
      setp(buffer_.data(), buffer_.data() + buffer_.size());  // drop the data: a failed write is not retried
      refuse_output(name_, error);
    }
  }
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

FdWriter::int_type FdWriter::overflow(int_type c) {
  drain();
  if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
  return traits_type::not_eof(c);
}

int FdWriter::sync() {
  drain();
  return 0;
}

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

/// A WholeFile whose temporary file is also removed when SIGINT, SIGTERM or SIGHUP ends the process. There must be only
/// one at a time.
class TemporaryFile {
 public:
  /// Throws FileError.
  explicit TemporaryFile(const std::string& path);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  [[nodiscard]] int fd() const { return file_->fd(); }
  /// Throws FileError; the target is then unchanged.
  void commit();

 private:
  std::optional<WholeFile> file_;
};

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

bool is_standard_output(const std::string& path) { return path == "-" || path == "/dev/stdout"; }

std::string shown_name(const std::string& path) { return is_standard_output(path) ? "<stdout>" : path; }

void write_to(int fd, const std::string& name, const std::function<void(std::ostream&)>& write) {
  FdWriter buffer(fd, name);
  std::ostream stream(&buffer);
  stream.exceptions(std::ios::badbit);  // rethrows the writer's Failure at the first failed write
  write(stream);
  stream.flush();
}

void write_directly(const std::string& path, const std::function<void(std::ostream&)>& write) {
  int fd;
  do {
    fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) refuse_output(path, errno);
  try {
    write_to(fd, path, write);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0 && errno != EINTR) refuse_output(path, errno);
}

/// Whether the path is a regular file that can be replaced. Files under /dev and /proc may look regular, but stand for
/// open descriptors.
bool is_ordinary(const struct stat& status, const std::string& path) {
  return S_ISREG(status.st_mode) && !path.starts_with("/dev/fd/") && !path.starts_with("/dev/std") &&
         !path.starts_with("/proc/");
}

}  // namespace

void write_output(const std::string& path, const std::function<void(std::ostream&)>& write) {
  if (is_standard_output(path)) return write_to(STDOUT_FILENO, shown_name(path), write);

  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISDIR(status.st_mode) && !is_ordinary(status, path)) return write_directly(path, write);
  TemporaryFile file(path);
  write_to(file.fd(), path, write);
  file.commit();
}

bool is_terminal(const std::string& path) { return is_standard_output(path) && ::isatty(STDOUT_FILENO) == 1; }

}  // namespace stagecraft::cli
