#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "stagecraft/core/error.h"

namespace stagecraft::json {

/// A JSON value with its path, for error messages. Every access throws InvalidArgument when the value does not have the
/// expected type.
class Cursor {
 public:
  using Json = nlohmann::json;

  Cursor(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Json& json() const { return *value_; }

  /// Whether the object has the key with a value other than null.
  [[nodiscard]] bool has(const char* key) const {
    const auto found = object().find(key);
    return found != value_->end() && !found->is_null();
  }
  Cursor operator[](const char* key) const {
    const auto found = object().find(key);
    if (found == value_->end()) refuse(std::string("has no '") + key + "'");
    return {*found, path_ + "." + key};
  }
  [[nodiscard]] std::size_t size() const { return array().size(); }
  [[nodiscard]] Cursor at(std::size_t index) const {
    if (index >= size()) refuse("has no item " + std::to_string(index));
    return {(*value_)[index], path_ + "[" + std::to_string(index) + "]"};
  }

  /// Key and value of a tagged union, which is an object with exactly one key.
  [[nodiscard]] std::pair<std::string, Cursor> alternative() const {
    if (object().size() != 1) refuse("must have exactly one key");
    const auto only = value_->begin();
    return {only.key(), Cursor(only.value(), path_ + "." + only.key())};
  }

  [[nodiscard]] const std::string& text() const {
    if (!value_->is_string()) refuse("must be a text");
    return value_->get_ref<const std::string&>();
  }
  [[nodiscard]] std::int64_t integer() const {
    if (!value_->is_number_integer()) refuse("must be an integer");
    if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX) refuse("is too large an integer");
    return value_->get<std::int64_t>();
  }
  [[nodiscard]] bool flag() const {
    if (!value_->is_boolean()) refuse("must be true or false");
    return value_->get<bool>();
  }
  /// Infinities and NaN, which JSON numbers cannot express, are strings.
  [[nodiscard]] double real() const {
    if (*value_ == "Infinity") return std::numeric_limits<double>::infinity();
    if (*value_ == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (*value_ == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (!value_->is_number()) refuse("must be a number");
    return value_->get<double>();
  }

  template <typename Visit>
  void each(const Visit& visit) const {
    for (std::size_t i = 0; i < size(); ++i) visit(at(i));
  }
  /// Calls `visit(key, cursor)` for every entry of an object.
  template <typename Visit>
  void each_entry(const Visit& visit) const {
    for (auto entry = object().begin(); entry != object().end(); ++entry) {
      visit(entry.key(), Cursor(entry.value(), path_ + "." + entry.key()));
    }
  }

  [[noreturn]] void refuse(const std::string& why) const { throw InvalidArgument(path_ + " " + why); }

 private:
  [[nodiscard]] const Json& object() const {
    if (!value_->is_object()) refuse("must be an object");
    return *value_;
  }
  [[nodiscard]] const Json& array() const {
    if (!value_->is_array()) refuse("must be a list");
    return *value_;
  }

  const Json* value_;
  std::string path_;
};

}  // namespace stagecraft::json
