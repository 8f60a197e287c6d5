#pragma once

#include <iosfwd>
#include <string>

#include "report_text.h"
#include "stagecraft/graph/program.h"

/// Reports on what an exported model is made of, and where it can be cut.
namespace stagecraft::cli {

struct ModelReportOptions {
  int depth = 3;            ///< Levels of the module tree to show.
  bool parameters = false;  ///< Whether to list the parameters.
};

/// Readable text.
void write_model_report(std::ostream& out, const std::string& file, const graph::Program& program,
                        const ModelReportOptions& options);

/// All data.
Json model_json(const std::string& file, const graph::Program& program);

}  // namespace stagecraft::cli
