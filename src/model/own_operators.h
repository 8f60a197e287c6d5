#pragma once

/// Operators of published models that LibTorch does not have, and Stagecraft brings.
namespace stagecraft {

/// Registers them, once; leaves out those that another library has registered. From any thread.
void register_own_operators();

}  // namespace stagecraft
