#pragma once

#include <functional>

#include "stagecraft/graph/program.h"

/// Cutting a program into stages.
namespace stagecraft::graph {

/// A number that a stage reads off a tensor it receives, instead of receiving the number.
struct SizeOf {
  ValueId number = kNoValue;
  ValueId tensor = kNoValue;
  int dimension = 0;
};

/// What one stage does.
struct StageGraph {
  std::vector<int> nodes;         ///< In Program::nodes, ascending; some are in several stages.
  std::vector<ValueId> receives;  ///< Its arguments. Those of stage 0 are the user inputs.
  std::vector<SizeOf> sizes;
  std::vector<ValueId> sends;   ///< Its results; the last stage has the program's outputs instead.
  std::vector<int> loads;       ///< In Program::inputs: parameters, buffers and constants, ascending.
  std::vector<Update> updates;  ///< Of its buffers, when it is done.
  std::vector<ValueId> copies;  ///< Of what it receives, those it works on in place: it needs its own.
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

/// Cuts before these nodes, ascending; none gives one stage. Throws InvalidArgument with the reason when a stage would
/// be empty or take nothing from the stages before it, or when a cut would separate tensors that share memory which is
/// changed.
CutProgram cut(const Program& program, const std::vector<int>& places);

/// Why `cut` would refuse; empty when it would not.
std::string reason_against(const Program& program, const std::vector<int>& places);

// --- where ---

struct ModuleCut {
  enum class At : std::uint8_t { kBeginning, kEnd };

  std::string module;
  At at = At::kBeginning;
};

/// Throws InvalidArgument that lists all modules which are not there, and cuts that are the same place.
std::vector<int> places_of(const Program& program, const std::vector<ModuleCut>& cuts);
/// Where the model says so: calls of `pipe_split`, or stages by annotation. Throws InvalidArgument when it does not.
std::vector<int> marked_places(const Program& program);
/// The cuts that make the largest stage smallest, and among such the ones that send least. Work is estimated, unless
/// given by node. Throws InvalidArgument when there are not so many legal cuts.
std::vector<int> balanced_places(const Program& program, int stages, const std::vector<double>& work = {});

/// Where a module begins and the program may be cut.
struct LegalCut {
  int place = 0;
  std::string module;
  std::int64_t bytes = 0;  ///< That cross, per microbatch of the size exported.
};
std::vector<LegalCut> legal_module_cuts(const Program& program);

}  // namespace stagecraft::graph
