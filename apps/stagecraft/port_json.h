#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model_facts.h"

/// Values of a program in JSON, with the same keys in every report.
namespace stagecraft::cli {

/// {"name", "kind": "tensor", "type", "sizes": ["s0", 8], "bytes"}, {"name", "kind": "integer" | "real" | "flag"}.
nlohmann::ordered_json value_json(const graph::Program& program, graph::ValueId value);

/// The same with the caller's name; {"name", "kind": "fixed", "value"} for a constant.
nlohmann::ordered_json port_json(const graph::Program& program, const Port& port);

}  // namespace stagecraft::cli
