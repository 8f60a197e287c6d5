#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "stagecraft/sim/simulator.h"

/// Text and JSON that are the same in all reports.
namespace stagecraft::cli {

/// Makes text, such as a file name, safe for a one-line message, JSON and SVG: control characters and bytes that are
/// not UTF-8 become \xNN.
std::string printable(std::string_view text);

/// The same for text of several lines; keeps the line ends.
std::string printable_lines(std::string_view text);

using Json = nlohmann::ordered_json;  // keeps the order of keys

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

/// "LABEL            VALUE", the values below each other.
void write_line(std::ostream& out, std::string_view label, std::string_view value);
/// `part` is a fraction between 0 and 1.
std::string percent(double part);

std::string span_text(const Simulation& simulation);
std::string makespan_text(const Simulation& simulation);
/// Memory in a table or line: with a unit if the costs are in bytes, otherwise six digits.
std::string memory_cell(const Costs& costs, double memory);
/// "rank 2: parameters 4 GiB, gradients 2 GiB, optimizer 8 GiB, activations 1 GiB": the rank that holds the most.
std::string peak_text(const Costs& costs, const Simulation& simulation);
/// Adds makespan, span, their bubbles and the peak.
void add_outcome(Json& json, const Simulation& simulation);

}  // namespace stagecraft::cli
