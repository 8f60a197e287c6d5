#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "stagecraft/core/ids.h"
#include "stagecraft/passes/verify.h"

/// How the command ends when it does not end well: one line on standard error, perhaps details below it, an exit code.
namespace stagecraft::cli {

enum ExitCode : int {
  kOk = 0,
  kRefused = 1,   ///< The schedule must not run.
  kUnusable = 2,  ///< Usage, unreadable input, unwritable output.
  kInternal = 3,  ///< A bug of ours.
};

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& line, std::string details = {})
      : std::runtime_error(line), code_(code), details_(std::move(details)) {}
  [[nodiscard]] ExitCode code() const { return code_; }
  /// Further lines, each ending in a newline.
  [[nodiscard]] const std::string& details() const { return details_; }

 private:
  ExitCode code_;
  std::string details_;
};

/// "SUBJECT: row R, column C: MESSAGE". The place is left out when `step` is -1, the subject when it is empty. Rows and
/// columns count from 1, as an editor shows them.
std::string located(std::string_view subject, RankId rank, int step, std::string_view message);

/// A refused schedule as a failure: the one line, then the cycle of waiting ranks and the piece of the table.
Failure refused(std::string_view subject, const Refusal& refusal);

/// Writes "stagecraft: LINE" and the details to standard error.
void print_error(std::string_view line, std::string_view details = {}) noexcept;

/// From inside a catch block: prints the exception in flight and returns the exit code it stands for. `subject` is the
/// file, or whatever else the command works on; it leads the messages of errors that do not know it.
int report_exception(const std::string& subject) noexcept;

}  // namespace stagecraft::cli
