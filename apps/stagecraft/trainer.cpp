#include "trainer.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "failure.h"

namespace stagecraft::cli {
namespace {

std::string trainer_path() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  return (own.parent_path() / "stagecraft-train").string();
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw Failure(kUnusable, "cannot start '" + path + "': " + std::strerror(error) +
                               ": `make build` builds it, `make install` installs it beside 'stagecraft'");
}

std::string read_all(int from) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t count = ::read(from, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

void hand_over_to_trainer(char** arguments) {
  std::string trainer = trainer_path();
  std::vector<char*> all = {trainer.data()};
  for (; *arguments != nullptr; ++arguments) all.push_back(*arguments);
  all.push_back(nullptr);
  ::execv(trainer.c_str(), all.data());
  const int error = errno;
  refuse(trainer, error);
}

std::string output_of_trainer(const std::vector<std::string>& arguments) {
  std::string trainer = trainer_path();
  if (::access(trainer.c_str(), X_OK) != 0) refuse(trainer, errno);
  std::vector<std::string> words = arguments;
  std::vector<char*> all = {trainer.data()};
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) refuse(trainer, errno);
  const pid_t child = ::fork();
  if (child < 0) refuse(trainer, errno);
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::execv(trainer.c_str(), all.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  const bool unusable = WIFEXITED(status) && WEXITSTATUS(status) == 2;
  throw Failure(unusable ? kUnusable : kRefused, "the stages could not be measured: see above");
}

}  // namespace stagecraft::cli
