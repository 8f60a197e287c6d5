#pragma once

#include "failure.h"

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace stagecraft::cli {

/// Sets help, version and the rules of the whole program. Call it after the commands are added.
void describe(CLI::App& program);

/// A one-line failure for wrong arguments, which refers to --help.
Failure usage_failure(const CLI::App& program, const CLI::Error& error);

}  // namespace stagecraft::cli
