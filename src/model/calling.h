#pragma once

#include "stagecraft/graph/program.h"
#include "stagecraft/stage/stage.h"

/// How a program is called: its inputs from a stage's call, its outputs as one value.
namespace stagecraft {

/// The values of all user inputs of kind kUser, in order. Arguments may be given by position or by name. Throws
/// InvalidArgument for one that is missing, unknown, nested otherwise, or a fixed one of another value, and ShapeError
/// for tensors of another type or shape than the program takes; all of them together.
ValueList user_inputs(const graph::Program& program, const StageCall& call);

/// Leaves put together as the tree says.
Value nested(const graph::Tree& tree, const ValueList& leaves);

}  // namespace stagecraft
