#include "step_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/file/whole_file.h"

namespace stagecraft::train {
namespace {

/// The size of a regular file; none for a pipe or a terminal, which cannot be cut.
std::optional<off_t> size_of_file(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return status.st_size;
}

}  // namespace

StepLog::StepLog(const std::string& path, Format format, std::int64_t steps) : path_(path), format_(std::move(format)) {
  const std::int64_t kept = steps == 0 ? 0 : kept_bytes(steps);
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const int error = errno;
  const std::optional<off_t> size = fd_ < 0 ? std::nullopt : size_of_file(fd_);
  if (fd_ < 0 || (size && *size != kept && ::ftruncate(fd_, kept) != 0)) {
    throw FileError(path, cannot_write(fd_ < 0 ? error : errno) + "; or choose another place for " + format_.option);
  }
  if (kept == 0 && !format_.heading.empty()) write(format_.heading);
}

StepLog::~StepLog() {
  if (fd_ >= 0) ::close(fd_);
}

std::int64_t StepLog::kept_bytes(std::int64_t steps) const {
  std::ifstream in(path_, std::ios::binary);
  std::int64_t kept = 0;
  std::string line;
  for (bool is_first = true; std::getline(in, line) && !in.eof(); is_first = false) {  // eof: a line without an end
    const bool is_heading = is_first && !format_.heading.empty() && line == format_.heading;
    const std::optional<std::int64_t> step = is_heading ? std::optional<std::int64_t>(0) : format_.step_of(line);
    if (!step) {
      throw FileError(path_, "it holds a line " + in_quotes(shortened(line)) + ", which is none of " + format_.option +
                                 ", so the run cannot go on in it: choose another file");
    }
    if (*step > steps) break;
    kept += static_cast<std::int64_t>(line.size()) + 1;
  }
  return kept;
}

void StepLog::write(std::string line) {
  line += '\n';
  const std::optional<off_t> before = size_of_file(fd_);
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(fd_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (before && done > 0 && ::ftruncate(fd_, *before) != 0) done = 0;  // there is nothing more to be done about it
      throw FileError(path_, cannot_write(error));
    }
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace stagecraft::train
