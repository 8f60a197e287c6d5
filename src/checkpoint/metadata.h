#pragma once

/// Keys of a checkpoint's metadata.
namespace stagecraft {

inline constexpr const char* kOwnPrefix = "stagecraft.";
inline constexpr const char* kStep = "stagecraft.step";
inline constexpr const char* kPipelineSteps = "stagecraft.pipeline_steps";
/// With float16: "65536 12", the scale of losses and the updates since it changed.
inline constexpr const char* kLossScaling = "stagecraft.loss_scaling";
inline constexpr const char* kOptimizer = "stagecraft.optimizer";
inline constexpr const char* kLearningRate = "stagecraft.learning_rate";
/// Python tools require this key, with the value "pt", to read the file as PyTorch tensors.
inline constexpr const char* kFormat = "format";

}  // namespace stagecraft
