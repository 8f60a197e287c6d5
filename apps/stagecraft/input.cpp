#include "input.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "options.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft::cli {
namespace {

constexpr std::size_t kBlock = std::size_t{64} * 1024;

std::string_view remedy(int error) {
  switch (error) {
    case ENOENT:
      return "check the path, or give - to read standard input";
    case EISDIR:
      return "give a file";
    case EACCES:
    case EPERM:
      return "ask for permission to read it";
    case EBADF:
      return "standard input is closed, so give a file";
    default:
      return "check the path";
  }
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw Failure(kUnusable,
                fmt::format("{}: cannot read it: {}: {}", source_name(path), std::strerror(error), remedy(error)));
}

class InputFile {
 public:
  explicit InputFile(const std::string& path) : path_(path), fd_(STDIN_FILENO) {
    if (path == "-") return;
    do {
      fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    } while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) refuse(path_, errno);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() {
    if (path_ != "-") ::close(fd_);
  }

  /// The next block; empty at the end of the file. The view is valid until the next call.
  std::string_view next_block() {
    while (true) {
      const ssize_t got = ::read(fd_, block_.data(), block_.size());
      if (got >= 0) return {block_.data(), static_cast<std::size_t>(got)};
      if (errno != EINTR) refuse(path_, errno);
    }
  }

 private:
  const std::string& path_;
  int fd_;
  std::array<char, kBlock> block_;
};

}  // namespace

std::string source_name(const std::string& path) {
  if (path == "-") return "<stdin>";
  return path.empty() ? "''" : path;
}

std::string schedule_name(const std::string& path) {
  return path == "-" ? std::string() : printable(std::filesystem::path(path).stem().string());
}

std::vector<Row> read_rows(const std::string& path) {
  InputFile file(path);
  CsvReader reader;
  for (std::string_view block = file.next_block(); !block.empty(); block = file.next_block()) reader.feed(block);
  std::vector<Row> rows = reader.finish();
  if (rows.empty()) {
    throw Failure(kUnusable, fmt::format("{}: it has no rows: a schedule has one line per rank, such as 0F0,0B0",
                                         source_name(path)));
  }
  return rows;
}

std::string read_text(const std::string& path) {
  constexpr std::size_t kMost = std::size_t{64} << 20;
  InputFile file(path);
  std::string text;
  for (std::string_view block = file.next_block(); !block.empty(); block = file.next_block()) {
    text += block;
    if (text.size() > kMost) throw Failure(kUnusable, fmt::format("{}: it has more than 64 MiB", source_name(path)));
  }
  return text;
}

Schedule read_schedule(const std::string& path) { return Schedule::from_rows(read_rows(path), schedule_name(path)); }

CLI::Option* add_costs(CLI::App& parser, std::string& target) {
  return parser
      .add_option("--costs", target, "Costs in JSON; 'stagecraft costs --example' shows one; - reads standard input")
      ->type_name(std::string(kFileType))
      ->required();
}

Costs read_costs(const std::string& path) { return read_parsed(path, parse_costs); }

CostFile read_cost_file(const std::string& path) { return read_parsed(path, parse_cost_file); }

ModelInput::ModelInput(CLI::App& parser) {
  parser.add_option("file", file_, "Model written by torch.export.save (.pt2)")
      ->type_name(std::string(kFileType))
      ->required();
  parser.add_option("--model", model_, "The model to take, where the file holds several")->type_name("MODEL");
}

graph::Program ModelInput::read() const { return graph::read_program(ZipArchive(open_file(file_)), model_); }

}  // namespace stagecraft::cli
