#pragma once

#include <string>

namespace stagecraft {

/// The address of a C function that a loaded library has but does not export, from the symbol table of its file. Null
/// if no library of this file name is loaded, if it is stripped, or if it has no such function.
void* hidden_function(const std::string& library, const std::string& name);

}  // namespace stagecraft
