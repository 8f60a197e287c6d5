#pragma once

/// `stagecraft split --measure`: times of the stages of a cut model on this machine.
namespace stagecraft::train {

/// Whether the program was started to measure: its first argument is "--stage-times".
bool wants_stage_times(int argc, char** argv);

/// stagecraft-train --stage-times FILE --cut-before NODE ... [--model NAME] [--load LIB.so ...]: prints the costs of
/// the stages in seconds, as a cost file. Inputs are random, one microbatch of the exported size. Returns the exit
/// code.
int print_stage_times(int argc, char** argv);

}  // namespace stagecraft::train
