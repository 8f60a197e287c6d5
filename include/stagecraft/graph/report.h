#pragma once

#include "stagecraft/graph/cut.h"

/// Programs and cuts as text for people.
namespace stagecraft::graph {

/// What one stage has and what crosses into it and out of it, per microbatch of the size exported.
struct StageFigures {
  int nodes = 0;
  std::int64_t parameters = 0;  ///< Numbers in them.
  std::int64_t parameter_bytes = 0;
  double work = 0;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;  ///< With what is passed through for later stages.
};
/// Values that go from stage `boundary` or one before it to a later one, ascending.
std::vector<ValueId> crossing(const CutProgram& cut, int boundary);
/// With the sizes of the export; 8 for a number.
std::int64_t bytes_of(const Program& program, ValueId value);

std::vector<StageFigures> figures_of(const Program& program, const CutProgram& cut);

/// "1.25M", "312".
std::string count_text(double count);
/// "1.5 MiB", "312 B".
std::string bytes_text(std::int64_t bytes);

/// A table with one line per stage, then what crosses each cut, then tied parameters.
std::string summary(const Program& program, const CutProgram& cut);

}  // namespace stagecraft::graph
