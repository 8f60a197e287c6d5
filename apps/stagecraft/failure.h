#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "stagecraft/core/ids.h"
#include "stagecraft/passes/verify.h"

/// Errors of the command: one line on standard error, optional details below it, and an exit code.
namespace stagecraft::cli {

enum ExitCode : int {
  kOk = 0,
  kRefused = 1,   ///< The schedule must not run.
  kUnusable = 2,  ///< Usage, unreadable input, unwritable output.
  kInternal = 3,  ///< A bug in stagecraft.
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

/// "SUBJECT: row R, column C: MESSAGE". Leaves out row and column when `step` is -1, and an empty subject. Rows and
/// columns count from 1, as in an editor.
std::string located(std::string_view subject, RankId rank, int step, std::string_view message);

/// The failure for a refused schedule: the message, then as details the cycle of waiting ranks and the table excerpt.
Failure refused(std::string_view subject, const Refusal& refusal);

/// Call in a catch block: the current exception as a failure, whose line begins with `subject`, usually the input file,
/// unless the message names it. Rethrows std::bad_alloc.
Failure current_failure(const std::string& subject);

/// Writes "stagecraft: LINE" and the details to standard error.
void print_error(std::string_view line, std::string_view details = {}) noexcept;

/// Call in a catch block: prints the current exception and returns its exit code. `subject`, usually the input file, is
/// put before messages that do not name it.
int report_exception(const std::string& subject) noexcept;

}  // namespace stagecraft::cli
