#pragma once

#include "stagecraft/graph/cut.h"

/// Readable reports on programs and cuts.
namespace stagecraft::graph {

/// Sizes of one stage and of its messages, per microbatch of the exported size.
struct StageFigures {
  int nodes = 0;
  std::int64_t parameters = 0;  ///< Number of elements.
  std::int64_t parameter_bytes = 0;
  double work = 0;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;  ///< Including what is passed on to later stages.
};
/// Values sent from a stage up to `boundary` to a later stage, ascending.
std::vector<ValueId> crossing(const CutProgram& cut, int boundary);
/// Bytes of a value, with the sizes at export; 8 for a number.
std::int64_t bytes_of(const Program& program, ValueId value);

std::vector<StageFigures> figures_of(const Program& program, const CutProgram& cut);

/// "1.25M", "312".
std::string count_text(double count);
/// "1.5 MiB", "312 B".
std::string bytes_text(std::int64_t bytes);

/// A table with one line per stage, then what crosses each cut, then tied parameters.
std::string summary(const Program& program, const CutProgram& cut);

}  // namespace stagecraft::graph
