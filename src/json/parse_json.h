#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "stagecraft/core/error.h"

/// JSON that a user gives: the only way into the parser, so that no text can end the program and no message of the
/// parser's own reaches anybody.
namespace stagecraft::json {

/// Copying and printing a parsed text take a stack frame per level, so levels are limited. Deepest of the known formats
/// are an exported program's values, 64 levels of two brackets each.
inline constexpr int kDeepest = 256;

/// Throws InvalidArgument for a text with more than `kDeepest` levels, or with a 0, where the parser would stop as if
/// the text ended there. `remedy` ends the message.
void check_text(std::string_view text, std::string_view remedy);

/// "line 3: this is not JSON: <remedy>", where the parser has stopped at this byte, counted from 1.
std::string not_json(std::string_view text, std::size_t byte, std::string_view remedy);

/// The parser's message without its own number and place: "number overflow parsing '1e999'".
std::string_view reason_in(std::string_view what);

/// The text as `Json` (nlohmann::json, or ordered_json where the order of keys counts). Throws InvalidArgument with the
/// line or the value at fault, and the remedy.
template <typename Json>
Json parse(std::string_view text, std::string_view remedy) {
  check_text(text, remedy);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const typename Json::parse_error& error) {
    throw InvalidArgument(not_json(text, error.byte, remedy));
  } catch (const typename Json::out_of_range& error) {
    throw InvalidArgument("this JSON holds a number that is not finite as a double (" +
                          std::string(reason_in(error.what())) + "): " + std::string(remedy));
  }
}

}  // namespace stagecraft::json
