#pragma once

#include <string>

#include "stagecraft/graph/program.h"

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// The exported model that a command reads: FILE, and --model where the file holds several.
class ModelInput {
 public:
  explicit ModelInput(CLI::App& parser);

  [[nodiscard]] const std::string& file() const { return file_; }
  /// Throws FileError.
  [[nodiscard]] graph::Program read() const;

 private:
  std::string file_;
  std::string model_;
};

}  // namespace stagecraft::cli
