#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace stagecraft::train {

/// A text file with a line per step. Every line is written by one call, so a run that is killed leaves whole lines.
class StepLog {
 public:
  struct Format {
    std::string option;   ///< For errors: "--metrics".
    std::string heading;  ///< The first line; empty: none.
    /// The step of a line; none for a line that is not of this format.
    std::function<std::optional<std::int64_t>(std::string_view line)> step_of;
  };

  /// Opens the file of a run that has done `steps` steps. At 0 the file begins anew. Otherwise lines of later steps,
  /// which were lost and are done again, are cut off, and so is a last line without an end. Throws FileError when the
  /// file cannot be written, or holds lines of something else.
  StepLog(const std::string& path, Format format, std::int64_t steps);
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;
  ~StepLog();

  /// Appends a line. Throws FileError; the file then ends with the line before.
  void write(std::string line);

 private:
  /// Bytes of the file that stay.
  [[nodiscard]] std::int64_t kept_bytes(std::int64_t steps) const;

  std::string path_;
  Format format_;
  int fd_ = -1;
};

}  // namespace stagecraft::train
