#include "fd_writer.h"

#include <unistd.h>

#include <cerrno>

#include "failure.h"
#include "stagecraft/file/whole_file.h"

namespace stagecraft::cli {
namespace {

std::string reason(int error) {
  if (error == EBADF) return "cannot write it: standard output is closed, so write to a file with -o";
  if (error == EPIPE) return "cannot write it: Broken pipe: nobody reads any more";
  return cannot_write(error);
}

}  // namespace

void refuse_output(const std::string& name, int error) { throw Failure(kUnusable, name + ": " + reason(error)); }

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

}  // namespace stagecraft::cli
