#include "stagecraft/file/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

// Bytes written between syncs. Syncing a large file only at the end would be one long wait.
constexpr std::size_t kSyncedTogether = std::size_t{256} << 20U;

std::string_view remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some space, or choose another place";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a place that you may write to";
    case ENOENT:
      return "create its folder first";
    case EISDIR:
      return "give the name of a file";
    default:
      return "check the path";
  }
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw FileError(path.empty() ? "''" : path, cannot_write(error));
}

/// The file at the end of a chain of symbolic links, which may not exist yet.
fs::path follow_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as in Linux
  fs::path target = path;
  std::error_code ignored;
  for (int i = 0; fs::is_symlink(target, ignored); ++i) {
    if (i == kMostLinks) refuse(path, ELOOP);
    // if the link is absolute, operator/ drops the folder
    target = target.parent_path() / fs::read_symlink(target, ignored);
  }
  return target;
}

std::string six_letters() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::string text;
  for (int i = 0; i < 6; ++i) text += kLetters[random() % kLetters.size()];
  return text;
}

/// Syncs a folder, which makes a rename in it durable.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // a folder that is writable but not readable
  ::fsync(fd);         // errors are ignored: the file is already in place
  ::close(fd);
}

}  // namespace

std::string cannot_write(int error) {
  return fmt::format("cannot write it: {}: {}", std::strerror(error), remedy(error));
}

WholeFile::WholeFile(std::string path) : path_(std::move(path)) {
  struct stat status {};
  const bool exists = ::stat(path_.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) refuse(path_, errno);
  if (path_.empty()) refuse(path_, ENOENT);
  if (path_.ends_with('/') || (exists && S_ISDIR(status.st_mode))) refuse(path_, EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    throw FileError(path_, "cannot replace it: it is no ordinary file: choose another place");
  }
  // A rename needs no write permission on the file, so check it here: a read-only file must not be replaced.
  if (exists && ::access(path_.c_str(), W_OK) != 0) refuse(path_, errno);
  target_ = follow_links(path_).string();
  create();
  if (!exists) return;
  // Only root can change the owner; otherwise the file belongs to the current user.
  if (::fchown(fd_, status.st_uid, status.st_gid) != 0) errno = 0;
  if (::fchmod(fd_, status.st_mode & 07777) == 0) return;
  const int error = errno;
  ::close(fd_);
  ::unlink(hidden_.c_str());
  refuse(path_, error);
}

void WholeFile::create() {
  const std::string stem = (fs::path(target_).parent_path() / ".stagecraft-").string();
  do {
    hidden_ = stem + six_letters();
    fd_ = ::open(hidden_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && (errno == EEXIST || errno == EINTR));
  if (fd_ < 0) refuse(path_, errno);
}

void WholeFile::write(const void* bytes, std::size_t size) {
  const auto* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::write(fd_, from, size);
    if (written < 0 && errno != EINTR) refuse(path_, errno);
    if (written <= 0) continue;
    from += written;
    size -= static_cast<std::size_t>(written);
    unsynced_ += static_cast<std::size_t>(written);
  }
  if (unsynced_ < kSyncedTogether) return;
  if (::fdatasync(fd_) != 0 && errno != EINVAL) refuse(path_, errno);
  unsynced_ = 0;
}

void WholeFile::write_at(std::uint64_t offset, const void* bytes, std::size_t size) {
  const auto* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::pwrite(fd_, from, size, static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) refuse(path_, errno);
    if (written <= 0) continue;
    from += written;
    offset += static_cast<std::uint64_t>(written);
    size -= static_cast<std::size_t>(written);
  }
}

void WholeFile::finish() {
  if (fd_ < 0) return;
  // EINVAL: the file system does not support sync.
  if (::fsync(fd_) != 0 && errno != EINVAL) refuse(path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) refuse(path_, errno);
}

void WholeFile::commit() {
  finish();
  if (::rename(hidden_.c_str(), target_.c_str()) != 0) refuse(path_, errno);
  hidden_.clear();
  sync_folder(fs::path(target_).parent_path());
}

WholeFile::~WholeFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!hidden_.empty()) ::unlink(hidden_.c_str());
}

}  // namespace stagecraft
