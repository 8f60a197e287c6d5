#include "stagecraft/core/error.h"

namespace stagecraft {

bool is_interruption(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const Interruption&) {
    return true;
  } catch (const std::exception& known) {
    const auto* outer = dynamic_cast<const std::nested_exception*>(&known);
    return outer != nullptr && is_interruption(outer->nested_ptr());
  } catch (...) {
    return false;
  }
}

}  // namespace stagecraft
