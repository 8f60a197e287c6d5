#pragma once

#include <optional>
#include <string>

#include "stagecraft/runtime/precision.h"
#include "stagecraft/stage/value.h"

/// What Precision means for the values of a step.
namespace stagecraft {

/// Throws InvalidArgument for types that are not floating-point, or do not go together.
void check_precision(const Precision& precision);
/// For comparing ranks: "compute BFloat16, reduce Float".
std::string text_of(const Precision& precision);

/// A value of the user's as modules that compute in this type take it.
Value for_modules(const Value& value, at::ScalarType compute);
/// The output of the last stage as the loss and the user take it.
Value for_loss(const Value& output, at::ScalarType compute);

/// While it lives, operations of this thread choose their types, if the precision says so.
class AutocastScope {
 public:
  AutocastScope(const Precision& precision, at::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  struct Before {
    bool is_enabled;
    bool has_cache;
    at::ScalarType type;
  };
  at::DeviceType device_;
  std::optional<Before> before_;  // none: nothing was changed
};

}  // namespace stagecraft
