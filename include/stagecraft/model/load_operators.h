#pragma once

#include <string>

namespace stagecraft {

/// Loads a shared library that registers operators (TORCH_LIBRARY), for exported models that use them. Call it before
/// the model is read. The library stays loaded; loading it again does nothing. Throws FileError, with the reason, for a
/// file that does not exist, is no whole shared library of this machine, or needs another LibTorch. Where operators
/// cannot be registered, such as those of a namespace that another library has, the loader may not let the exception
/// out: the program then ends with exit code 2, after saying why.
void load_operators(const std::string& path);

}  // namespace stagecraft
