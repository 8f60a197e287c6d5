#include "output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ostream>

#include "fd_writer.h"
#include "temporary_file.h"

namespace stagecraft::cli {
namespace {

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
