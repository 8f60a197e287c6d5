#pragma once

#include <nlohmann/json.hpp>
#include <optional>

/// What reports in JSON are made of.
namespace stagecraft::cli {

using Json = nlohmann::ordered_json;  // keys as they are written

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace stagecraft::cli
