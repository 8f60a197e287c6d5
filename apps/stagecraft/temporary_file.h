#pragma once

#include <string>

struct stat;

namespace stagecraft::cli {

/// A file on its way to its place. It lives in the target's folder under a hidden name and disappears with the object,
/// or when SIGINT, SIGTERM or SIGHUP end the process; `commit` moves it over the target instead. One at a time.
class TemporaryFile {
 public:
  /// `name` is how messages call the target; `existing` describes the file to be replaced, if there is one, whose mode
  /// and owner are taken over. Throws Failure.
  TemporaryFile(std::string target, std::string name, const struct stat* existing);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  [[nodiscard]] int fd() const { return fd_; }
  /// Everything is on the disk before the name changes. Throws Failure, and then the target is untouched.
  void commit();

 private:
  void take_over(const struct stat* existing);
  void discard();

  std::string target_;
  std::string name_;
  std::string path_;
  int fd_ = -1;
};

}  // namespace stagecraft::cli
