#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"

/// Parsing of JSON from users. All such JSON is parsed here, so that no text can crash the program and no message of
/// the parser reaches a user.
namespace stagecraft::json {

/// Most levels of nesting; copying and printing parsed JSON take a stack frame per level. The deepest known format,
/// values of an exported program, has 64 levels of two brackets each.
inline constexpr int kDeepest = 256;

/// Throws InvalidArgument for a text with more than `kDeepest` levels, or with a byte 0, which the parser would take
/// for the end of the text. The message ends with `remedy`.
void check_text(std::string_view text, std::string_view remedy);

/// "line 3: this is not JSON: <remedy>". `byte` is where the parser stopped, counted from 1.
std::string not_json(std::string_view text, std::size_t byte, std::string_view remedy);

/// The parser's message without error number and position: "number overflow parsing '1e999'".
std::string_view reason_in(std::string_view what);

/// Parses the text as `Json` (nlohmann::json, or ordered_json to keep the order of keys). Throws InvalidArgument with
/// the line or the faulty value, and the remedy.
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

/// As `parse`, but returns null for a text that is not JSON.
template <typename Json>
Json parse_or_null(std::string_view text) {
  try {
    return parse<Json>(text, {});
  } catch (const InvalidArgument&) {
    return nullptr;
  }
}

/// The value as text for an error message, cut to 40 bytes.
template <typename Json>
std::string shown(const Json& value) {
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// A number that is finite and not negative. For any other value adds a fault that begins with `key`, and returns none.
template <typename Json>
std::optional<double> non_negative(const Json& value, const std::string& key, Faults& faults) {
  if (!value.is_number()) {
    faults.add(key + ": got " + shown(value) + ", expected a number");
    return std::nullopt;
  }
  const auto number = value.template get<double>();
  if (std::isfinite(number) && number >= 0) return number;
  faults.add(key + ": got " + shown(value) + ", must be finite and not negative");
  return std::nullopt;
}

}  // namespace stagecraft::json
