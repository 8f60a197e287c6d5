#pragma once

#include <string>
#include <vector>

/// The separate program `stagecraft-train`, the only one that loads LibTorch. It is beside this one.
namespace stagecraft::cli {

/// Replaces this process by it. Throws Failure when it cannot be started.
void hand_over_to_trainer(char** arguments);

/// Runs it and returns what it wrote to standard output. Throws Failure when it cannot be started, or fails, in which
/// case it has said why on standard error.
std::string output_of_trainer(const std::vector<std::string>& arguments);

}  // namespace stagecraft::cli
