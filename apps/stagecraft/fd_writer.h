#pragma once

#include <array>
#include <streambuf>
#include <string>

namespace stagecraft::cli {

/// Throws the Failure for an output that cannot be written, with the remedy for this errno.
[[noreturn]] void refuse_output(const std::string& name, int error);

/// Writes to a file descriptor it does not own, and throws Failure at once when that fails: a full disk is noticed at
/// the first block that does not fit, not at the end, and never overlooked.
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
