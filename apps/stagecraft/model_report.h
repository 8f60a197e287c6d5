#pragma once

#include <iosfwd>
#include <string>

#include "stagecraft/graph/program.h"

namespace stagecraft::cli {

struct ModelReportOptions {
  int depth = 3;            ///< Levels of the module tree to show.
  bool parameters = false;  ///< Whether to list the parameters.
};

/// Reports on the contents of a model: as readable text, and as JSON with all data.
void write_model_report(std::ostream& out, const std::string& file, const graph::Program& program,
                        const ModelReportOptions& options);
void write_json_model_report(std::ostream& out, const std::string& file, const graph::Program& program);

}  // namespace stagecraft::cli
