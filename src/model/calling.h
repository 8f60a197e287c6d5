#pragma once

#include "stagecraft/graph/program.h"
#include "stagecraft/stage/stage.h"

/// The calling convention of a program: its inputs from a stage's call. `nested` makes its outputs one value.
namespace stagecraft {

/// The values of all inputs of kind kUser, in order. Arguments may be given by position or by name. Throws
/// InvalidArgument for one that is missing, unknown, nested in another way, or fixed to another value. Throws
/// ShapeError that lists all tensors of another type or shape than the program takes.
ValueList user_inputs(const graph::Program& program, const StageCall& call);

}  // namespace stagecraft
