#pragma once

#include <optional>
#include <string>

#include "stagecraft/file/whole_file.h"

namespace stagecraft::cli {

/// A WholeFile whose temporary file is also removed when SIGINT, SIGTERM or SIGHUP ends the process. There must be only
/// one at a time.
class TemporaryFile {
 public:
  /// Throws FileError.
  explicit TemporaryFile(const std::string& path);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  [[nodiscard]] int fd() const { return file_->fd(); }
  /// Throws FileError; the target is then unchanged.
  void commit();

 private:
  std::optional<WholeFile> file_;
};

}  // namespace stagecraft::cli
