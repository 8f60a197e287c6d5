#pragma once

#include <nlohmann/json.hpp>
#include <optional>

/// JSON type and conversions for reports.
namespace stagecraft::cli {

using Json = nlohmann::ordered_json;  // keeps the order of keys

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace stagecraft::cli
