#pragma once

#include <optional>
#include <string>

#include "stagecraft/file/whole_file.h"

namespace stagecraft::cli {

/// A WholeFile that disappears also when SIGINT, SIGTERM or SIGHUP end the process. One at a time.
class TemporaryFile {
 public:
  /// Throws FileError.
  explicit TemporaryFile(const std::string& path);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  [[nodiscard]] int fd() const { return file_->fd(); }
  /// Throws FileError, and then the target is untouched.
  void commit();

 private:
  std::optional<WholeFile> file_;
};

}  // namespace stagecraft::cli
