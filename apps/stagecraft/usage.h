#pragma once

#include "failure.h"

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace stagecraft::cli {

/// Help, version and the rules of the program as a whole. After the commands are added.
void describe(CLI::App& program);

/// One line that says what is wrong with the arguments and where to read on.
Failure usage_failure(const CLI::App& program, const CLI::Error& error);

}  // namespace stagecraft::cli
