#pragma once

/// Keys of a checkpoint's metadata.
namespace stagecraft {

inline constexpr const char* kOwnPrefix = "stagecraft.";
inline constexpr const char* kStep = "stagecraft.step";
inline constexpr const char* kPipelineSteps = "stagecraft.pipeline_steps";
inline constexpr const char* kOptimizer = "stagecraft.optimizer";
/// What Python's tools ask for before they read the file as tensors of PyTorch.
inline constexpr const char* kFormat = "format";

}  // namespace stagecraft
