#pragma once

#include <array>
#include <streambuf>
#include <string>

namespace stagecraft::cli {

/// Throws a Failure for an output that cannot be written, with the remedy for this errno.
[[noreturn]] void refuse_output(const std::string& name, int error);

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

}  // namespace stagecraft::cli
