#pragma once

#include <iosfwd>
#include <string>

#include "stagecraft/graph/program.h"

namespace stagecraft::cli {

struct ModelReportOptions {
  int depth = 3;            ///< Of the module tree.
  bool parameters = false;  ///< One line each.
};

/// What a model is made of, as text for people and as JSON with everything.
void write_model_report(std::ostream& out, const std::string& file, const graph::Program& program,
                        const ModelReportOptions& options);
void write_json_model_report(std::ostream& out, const std::string& file, const graph::Program& program);

}  // namespace stagecraft::cli
