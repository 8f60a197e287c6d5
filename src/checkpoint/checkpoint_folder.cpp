#include "checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/file/whole_file.h"

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBefore = "step-";
constexpr std::string_view kAfter = ".safetensors";
constexpr std::string_view kUnfinished = ".stagecraft-";  // then six letters: see WholeFile

/// -1 for the name of another file.
std::int64_t step_of(std::string_view name) {
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter) || name.size() <= kBefore.size() + kAfter.size()) return -1;
  name = name.substr(kBefore.size(), name.size() - kBefore.size() - kAfter.size());
  if (name.front() == '-' || (name.size() > 1 && name.front() == '0')) return -1;
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

template <typename Visit>
void for_each_name(const std::string& folder, const Visit& visit) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    visit(entry->path().filename().string());
  }
  if (error) throw FileError(folder, "cannot read the folder: " + error.message() + ": check the path");
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return;
  throw FileError(path, std::string("cannot remove it: ") + std::strerror(errno) +
                            ": choose a folder in which files may be removed");
}

}  // namespace

CheckpointFolder::~CheckpointFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void CheckpointFolder::make() const {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error && !fs::is_directory(path_)) throw FileError(path_, cannot_write(error.value()));
  if (!fs::is_directory(path_)) throw FileError(path_, "it is a file: give the path of a folder");
}

void CheckpointFolder::take(std::chrono::milliseconds patience) {
  if (lock_ >= 0) return;
  const int folder = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) throw FileError(path_, cannot_write(errno));
  const auto begin = std::chrono::steady_clock::now();
  while (::flock(folder, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;  // a file system without locks
    if (std::chrono::steady_clock::now() - begin < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    ::close(folder);
    throw FileError(path_,
                    "another run saves its checkpoints here: give each run a folder of its own, or end that one");
  }
  lock_ = folder;  // the system releases the lock of a process that is killed
  remove_unfinished();
}

void CheckpointFolder::remove_unfinished() const {
  std::vector<std::string> names;
  for_each_name(path_, [&](const std::string& name) {
    if (name.starts_with(kUnfinished) && name.size() == kUnfinished.size() + 6) names.push_back(name);
  });
  for (const std::string& name : names) remove_file((fs::path(path_) / name).string());
}

std::string CheckpointFolder::path_of(std::int64_t step) const {
  return (fs::path(path_) / (std::string(kBefore) + std::to_string(step) + std::string(kAfter))).string();
}

std::vector<CheckpointFile> CheckpointFolder::files() const {
  std::vector<CheckpointFile> files;
  for_each_name(path_, [&](const std::string& name) {
    if (const std::int64_t step = step_of(name); step >= 0) files.push_back({step, path_of(step)});
  });
  std::sort(files.begin(), files.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.step < b.step; });
  return files;
}

void CheckpointFolder::remove_old(int keep) const {
  if (keep == 0) return;
  const std::vector<CheckpointFile> all = files();
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) remove_file(all[i].path);
}

}  // namespace stagecraft
