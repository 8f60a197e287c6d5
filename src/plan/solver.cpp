#include "solver.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "stagecraft/core/error.h"

extern char** environ;

namespace stagecraft::detail {
namespace {

/// A temporary folder for the solver's files, removed on destruction.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "stagecraft-").string() +
                          std::string(6, 'X');  // what mkdtemp fills in
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw InvalidArgument("cannot make a temporary folder for the solver: check TMPDIR");
    }
    folder_ = pattern;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    // Not remove_all: a program with LibTorch 2.11 for CUDA gets that library's own, which crashes.
    for (const std::string& name : files_) ::unlink(name.c_str());
    ::rmdir(folder_.c_str());
  }
  /// The path of a file in the folder, which is removed with it.
  [[nodiscard]] std::string file(const char* name) { return files_.emplace_back((folder_ / name).string()); }

 private:
  std::vector<std::string> files_;
  std::filesystem::path folder_;
};

void run_cbc(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, "cbc", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error == 0) {
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (error != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127)) {
    throw InvalidArgument(
        "an exact plan needs COIN-OR CBC, and there is no program called cbc: install the package coinor-cbc, or plan "
        "without --exact");
  }
}

}  // namespace

Solution solve_lp(const std::string& program, std::size_t variables, double seconds) {
  Scratch scratch;
  const std::string model = scratch.file("model.lp");
  const std::string answer = scratch.file("answer.txt");
  std::ofstream(model) << program;
  run_cbc({"cbc", model, "-sec", fmt::format("{:.3f}", seconds), "-solve", "-solution", answer, "-quit"});

  // "Optimal - objective value 12.5", then a line per variable that is not 0: index, name, value, cost.
  std::ifstream in(answer);
  std::string line;
  if (!std::getline(in, line)) throw InvalidArgument("cbc wrote no answer: run it by hand to see why");
  Solution solution;
  if (line.find("feasible") != std::string::npos) return solution;  // "Infeasible", followed by meaningless numbers
  solution.proven = line.starts_with("Optimal");
  solution.values.assign(variables, 0);
  while (std::getline(in, line)) {
    if (line.starts_with("**")) line.erase(0, 2);  // cbc's mark of a value slightly out of bounds
    std::istringstream fields(line);
    std::string index;
    std::string name;
    double value = 0;
    if (!(fields >> index >> name >> value) || name.empty() || name[0] != 'x') continue;
    const std::size_t variable = std::strtoul(name.c_str() + 1, nullptr, 10);
    if (variable < variables) solution.values[variable] = value;
    solution.found = true;
  }
  return solution;
}

}  // namespace stagecraft::detail
