#include "stagecraft/core/comm_model.h"

namespace stagecraft {

std::string_view model_name(CommModel model) {
  constexpr std::array<std::string_view, 3> kNames = {"tagged", "in_order", "rendezvous"};
  return kNames[static_cast<std::size_t>(model)];
}

}  // namespace stagecraft
