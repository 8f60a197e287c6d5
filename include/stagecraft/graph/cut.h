#pragma once

#include <functional>

#include "stagecraft/graph/program.h"

/// Cuts a program into stages.
namespace stagecraft::graph {

/// A number that a stage takes from the shape of a tensor it receives, instead of receiving the number.
struct SizeOf {
  ValueId number = kNoValue;
  ValueId tensor = kNoValue;
  int dimension = 0;
};

/// The part of a program that one stage runs.
struct StageGraph {
  std::vector<int> nodes;         ///< Indices in Program::nodes, ascending; some nodes are in several stages.
  std::vector<ValueId> receives;  ///< Its arguments; for stage 0, the user inputs.
  std::vector<SizeOf> sizes;
  std::vector<ValueId> sends;   ///< Its results; empty for the last stage, which returns the outputs.
  std::vector<int> loads;       ///< Parameters, buffers and constants: indices in Program::inputs, ascending.
  std::vector<Update> updates;  ///< Updates of its buffers, applied when it is done.
  std::vector<ValueId> copies;  ///< Received values that it changes in place, so it must copy them.
};

struct CutEdge {
  int from = 0;
  int output = 0;
  int to = 0;
  int argument = 0;
  ValueId value = kNoValue;
};

/// One parameter in several stages.
struct Tie {
  int input = 0;
  std::vector<int> stages;
};

struct CutProgram {
  std::vector<StageGraph> stages;
  std::vector<CutEdge> edges;
  std::vector<Tie> ties;
};

/// Cuts before the nodes in `places`, ascending; an empty list gives one stage. Throws InvalidArgument with the reason
/// when a stage would be empty, take nothing from earlier stages or give nothing to later ones, or when a cut would
/// separate tensors that share memory which is changed in place.
CutProgram cut(const Program& program, const std::vector<int>& places);

/// Why `cut` would throw; empty when it would not.
std::string reason_against(const Program& program, const std::vector<int>& places);

// --- where ---

struct ModuleCut {
  enum class At : std::uint8_t { kBeginning, kEnd };

  std::string module;
  At at = At::kBeginning;
};

/// Places of cuts at modules. Throws InvalidArgument that lists all unknown modules, or for two cuts at the same place.
std::vector<int> places_of(const Program& program, const std::vector<ModuleCut>& cuts);
/// Places that the model marks: calls of `pipe_split`, else annotated stages. Throws InvalidArgument without marks, and
/// for annotated stages that do not ascend.
std::vector<int> marked_places(const Program& program);
/// Places that minimise the bytes sent, with the largest stage at most 10 % above its minimum. `work` is by node; if
/// empty, `work_of` estimates it. Throws InvalidArgument when there are too few legal cuts.
std::vector<int> balanced_places(const Program& program, int stages, const std::vector<double>& work = {});

/// What would make more places to cut, as a continuation of a sentence: ", or save program.run_decompositions(), ...";
/// empty if nothing is known that would.
std::string ways_to_more_places(const Program& program);
/// A sentence on a node that alone has more work than an equal share, if it could be taken apart; empty otherwise.
std::string note_on_large_nodes(const Program& program, const CutProgram& cut);

/// A legal cut at the beginning of a module.
struct LegalCut {
  int place = 0;
  std::string module;
  std::int64_t bytes = 0;  ///< Bytes that cross, per microbatch of the exported size.
};
std::vector<LegalCut> legal_module_cuts(const Program& program);

}  // namespace stagecraft::graph
