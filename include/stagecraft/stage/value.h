#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// Inputs and outputs of a stage.
namespace stagecraft {

class Value;
using ValueList = std::vector<Value>;
/// Entries in the order given.
using ValueDict = std::vector<std::pair<std::string, Value>>;

/// Something that only the user's side knows, such as an object of another language. It is given to every microbatch as
/// it is, and cannot be sent to another rank. Copies of a Value share it; the last one destroys it, in any thread.
class Opaque {
 public:
  Opaque() = default;
  virtual ~Opaque() = default;
  Opaque(const Opaque&) = delete;
  Opaque& operator=(const Opaque&) = delete;
  /// For errors: "a Python object of type 'Config'".
  [[nodiscard]] virtual std::string kind() const = 0;
  /// Whether it can stand for the object that another microbatch has returned in the same place: outputs are put
  /// together with that of the first. For what says how outputs are built, such as the class of a tuple, only if both
  /// are the same.
  [[nodiscard]] virtual bool stands_for(const Opaque& /*other*/) const { return true; }
};
using OpaquePtr = std::shared_ptr<const Opaque>;

/// A tree of tensors, scalars and opaque objects, or none. Copies share tensors.
class Value {
 public:
  /// Nothing: an optional argument that was not given.
  Value() = default;
  Value(at::Tensor tensor) : held_(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)
  Value(bool flag) : held_(flag) {}                       // NOLINT(google-explicit-constructor)
  Value(int number) : held_(std::int64_t{number}) {}      // NOLINT(google-explicit-constructor)
  Value(std::int64_t number) : held_(number) {}           // NOLINT(google-explicit-constructor)
  Value(double number) : held_(number) {}                 // NOLINT(google-explicit-constructor)
  Value(std::string text) : held_(std::move(text)) {}     // NOLINT(google-explicit-constructor)
  Value(const char* text) : held_(std::string(text)) {}   // NOLINT(google-explicit-constructor)
  Value(ValueList list) : held_(std::move(list)) {}       // NOLINT(google-explicit-constructor)
  Value(ValueDict dict) : held_(std::move(dict)) {}       // NOLINT(google-explicit-constructor)
  explicit Value(OpaquePtr opaque) : held_(std::move(opaque)) {}

  [[nodiscard]] bool is_none() const { return std::holds_alternative<std::monostate>(held_); }
  [[nodiscard]] bool is_tensor() const { return std::holds_alternative<at::Tensor>(held_); }
  [[nodiscard]] bool is_list() const { return std::holds_alternative<ValueList>(held_); }
  [[nodiscard]] bool is_dict() const { return std::holds_alternative<ValueDict>(held_); }

  /// Each throws InvalidArgument, which names the kind that is held instead. `real` also takes an integer.
  [[nodiscard]] const at::Tensor& tensor() const;
  [[nodiscard]] bool flag() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] double real() const;
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] const ValueList& list() const;
  [[nodiscard]] const ValueDict& dict() const;
  /// The same without a copy.
  [[nodiscard]] ValueList release_list() &&;
  /// The entry of a dict.
  [[nodiscard]] const Value& at(std::string_view key) const;
  [[nodiscard]] const Value& operator[](std::size_t index) const { return list().at(index); }

  /// "tensor", "none", "list of 3", ...
  [[nodiscard]] std::string kind() const;

  template <typename Visit>
  void for_each_tensor(Visit&& visit) const {
    if (const auto* tensor = std::get_if<at::Tensor>(&held_)) {
      visit(*tensor);
    } else if (const auto* list = std::get_if<ValueList>(&held_)) {
      for (const Value& item : *list) item.for_each_tensor(visit);
    } else if (const auto* dict = std::get_if<ValueDict>(&held_)) {
      for (const auto& [key, item] : *dict) item.for_each_tensor(visit);
    }
  }

  /// The same tree with every tensor replaced by `change(tensor)`, in the order of `for_each_tensor`.
  template <typename Change>
  [[nodiscard]] Value map_tensors(Change&& change) const {
    if (const auto* tensor = std::get_if<at::Tensor>(&held_)) return Value(at::Tensor(change(*tensor)));
    if (const auto* list = std::get_if<ValueList>(&held_)) {
      ValueList changed;
      changed.reserve(list->size());
      for (const Value& item : *list) changed.push_back(item.map_tensors(change));
      return changed;
    }
    if (const auto* dict = std::get_if<ValueDict>(&held_)) {
      ValueDict changed;
      changed.reserve(dict->size());
      for (const auto& [key, item] : *dict) changed.emplace_back(key, item.map_tensors(change));
      return changed;
    }
    return *this;
  }

  [[nodiscard]] std::size_t count_tensors() const;

  /// The held alternative, for code that handles every kind.
  using Held = std::variant<std::monostate, at::Tensor, bool, std::int64_t, double, std::string, ValueList, ValueDict,
                            OpaquePtr>;
  [[nodiscard]] const Held& held() const { return held_; }

 private:
  Held held_;
};

/// A value as the list of positional arguments of the next stage: the items of a list, or anything else as one item.
ValueList as_arguments(Value value);
/// A value with copies of all tensors.
Value copy_of(const Value& value);

}  // namespace stagecraft
