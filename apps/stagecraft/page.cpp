// `stagecraft page`: the page that `make page` built, with files inside.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <ostream>

#include "command.h"
#include "failure.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "stagecraft/page/built_page.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/timeline.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kPageExamples =
    "One HTML file that needs no server and no network: it plans, simulates, checks and draws schedules with the same\n"
    "code as this command. Opened with files it shows them: a schedule (two: side by side), costs, or the timeline of "
    "a\n"
    "run beside its plan.\n"
    "\n"
    "Examples:\n"
    "  stagecraft page -o page.html\n"
    "  stagecraft page -o page.html planned.csv costs.json\n"
    "  stagecraft page -o page.html timeline.json";

/// Refuses what the page could not show either, with the words of the other commands.
void check(const std::string& path, const std::string& text) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  const bool json = start != std::string::npos && (text[start] == '{' || text[start] == '[');
  const auto read = [&](const auto& parse) {
    (void)read_parsed(path, [&](const std::string&) { return parse(text); });
  };
  if (!json) {
    (void)read_rows(path);
  } else if (text[start] == '[' || text.find("\"traceEvents\"") != std::string::npos) {
    read(parse_timeline_trace);
  } else {
    read(parse_costs);
  }
}

class PageCommand : public Command {
 public:
  explicit PageCommand(CLI::App& program)
      : Command(program.add_subcommand("page", "Write a page that plans, simulates and shows schedules")) {
    parser_->add_option("files", files_, "Schedules in CSV, costs or timelines in JSON, to open it with")
        ->type_name(std::string(kFileType))
        ->expected(0, -1);
    add_output(*parser_, output_)->required();
    parser_->footer(kPageExamples);
  }

  int run() override {
    std::vector<PageFile> embedded;
    for (const std::string& path : files_) {
      if (path == "-") throw Failure(kUnusable, "the page takes files by name: give a path instead of -");
      try {
        std::string text = read_text(path);
        check(path, text);
        embedded.push_back({std::filesystem::path(path).filename().string(), std::move(text)});
      } catch (...) {
        return report_exception(source_name(path));
      }
    }
    const std::string page = built_page(embedded);
    write_output(output_, [&](std::ostream& out) { out << page; });
    return kOk;
  }

 private:
  std::vector<std::string> files_;
  std::string output_;
};

}  // namespace

std::unique_ptr<Command> make_page_command(CLI::App& program) { return std::make_unique<PageCommand>(program); }

}  // namespace stagecraft::cli
