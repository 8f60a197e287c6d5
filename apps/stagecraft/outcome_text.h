#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "stagecraft/sim/simulator.h"

/// Text and JSON about a simulated schedule, the same in all reports.
namespace stagecraft::cli {

void write_line(std::ostream& out, std::string_view label, std::string_view value);
/// `part` is a fraction between 0 and 1.
std::string percent(double part);

std::string span_text(const Simulation& simulation);
std::string makespan_text(const Simulation& simulation);
/// Adds makespan, span, their bubbles and the peak.
void add_outcome(nlohmann::ordered_json& json, const Simulation& simulation);

}  // namespace stagecraft::cli
