#pragma once

#include <string>
#include <vector>

#include "stagecraft/runtime/pipeline.h"

/// Checks before the first step that all ranks were given the same pipeline.
namespace stagecraft {

/// Describes this rank's pipeline as text: what must be the same everywhere, and what its stages take and give.
std::string statement_of(const std::vector<Stage>& stages, const PipelineOptions& options, const Schedule& schedule);

/// Compares the statements of all ranks. Says which ranks differ and how; empty when all agree.
std::string disagreement(const std::vector<std::string>& statements);

/// Says which patterns of names in the options fit no parameter of any rank; empty when there is none.
std::string useless_patterns(const std::vector<std::string>& statements);

/// The losses that the statements tell of.
struct KnownLosses {
  bool any_auxiliary = false;  // of a stage of any rank
  bool has_loss = false;       // the last stage's
};
KnownLosses known_losses(const std::vector<std::string>& statements);

}  // namespace stagecraft
