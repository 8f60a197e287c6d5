#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace stagecraft {

/// How a transport matches messages, from the least to the most restrictive model. A schedule that is safe under one
/// model is safe under all earlier ones. Each transport names its model; schedules are verified for it.
enum class CommModel {
  kTagged,      ///< Non-blocking, matched by tag (MPI, ranks as threads).
  kInOrder,     ///< Non-blocking, matched by order alone per directed pair of ranks (NCCL).
  kRendezvous,  ///< SEND and RECV each block until the other side arrives.
};
inline constexpr std::array<CommModel, 3> kCommModels = {CommModel::kTagged, CommModel::kInOrder,
                                                         CommModel::kRendezvous};
/// "tagged", "in_order", "rendezvous".
constexpr std::string_view model_name(CommModel model) {
  constexpr std::array<std::string_view, 3> kNames = {"tagged", "in_order", "rendezvous"};
  return kNames[static_cast<std::size_t>(model)];
}

}  // namespace stagecraft
