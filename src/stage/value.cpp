#include "stagecraft/stage/value.h"

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

template <typename Wanted>
const Wanted& get(const Value& value, const char* wanted) {
  if (const auto* held = std::get_if<Wanted>(&value.held())) return *held;
  throw InvalidArgument(std::string("a ") + wanted + " was expected here, but the value is " + value.kind());
}

}  // namespace

const at::Tensor& Value::tensor() const { return get<at::Tensor>(*this, "tensor"); }
bool Value::flag() const { return get<bool>(*this, "bool"); }
std::int64_t Value::integer() const { return get<std::int64_t>(*this, "whole number"); }
double Value::real() const {
  if (const auto* whole = std::get_if<std::int64_t>(&held_)) return static_cast<double>(*whole);
  return get<double>(*this, "number");
}
const std::string& Value::text() const { return get<std::string>(*this, "text"); }
const ValueList& Value::list() const { return get<ValueList>(*this, "list"); }
ValueList Value::release_list() && {
  (void)list();
  return std::get<ValueList>(std::move(held_));
}
const ValueDict& Value::dict() const { return get<ValueDict>(*this, "dict"); }

const Value& Value::at(std::string_view key) const {
  std::string known;
  for (const auto& [name, item] : dict()) {
    if (name == key) return item;
    known += (known.empty() ? "" : ", ") + name;
  }
  throw InvalidArgument("there is no entry '" + std::string(key) + "': the entries are " +
                        (known.empty() ? "none" : known));
}

std::string Value::kind() const {
  struct Name {
    std::string operator()(std::monostate) const { return "none"; }
    std::string operator()(const at::Tensor&) const { return "a tensor"; }
    std::string operator()(bool) const { return "a bool"; }
    std::string operator()(std::int64_t) const { return "a whole number"; }
    std::string operator()(double) const { return "a number"; }
    std::string operator()(const std::string&) const { return "text"; }
    std::string operator()(const ValueList& list) const { return "a list of " + std::to_string(list.size()); }
    std::string operator()(const ValueDict& dict) const { return "a dict of " + std::to_string(dict.size()); }
    std::string operator()(const OpaquePtr& opaque) const { return opaque->kind(); }
  };
  return std::visit(Name(), held_);
}

std::size_t Value::count_tensors() const {
  std::size_t count = 0;
  for_each_tensor([&](const at::Tensor&) { ++count; });
  return count;
}

ValueList as_arguments(Value value) {
  if (value.is_list()) return std::move(value).release_list();
  ValueList arguments;
  arguments.push_back(std::move(value));
  return arguments;
}

Value copy_of(const Value& value) {
  return value.map_tensors([](const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; });
}

}  // namespace stagecraft
