#pragma once

#include <array>
#include <string_view>

namespace stagecraft {

/// How messages are matched, from the most forgiving to the strictest. What is safe under a later one is safe under all
/// before. A transport says which one it needs; a schedule is verified for that one.
enum class CommModel {
  kTagged,      ///< Non-blocking, matched by tag (MPI, ranks as threads).
  kInOrder,     ///< Non-blocking, matched by order alone per directed pair of ranks (NCCL).
  kRendezvous,  ///< SEND and RECV each block until the other side arrives.
};
inline constexpr std::array<CommModel, 3> kCommModels = {CommModel::kTagged, CommModel::kInOrder,
                                                         CommModel::kRendezvous};
/// "tagged", "in_order", "rendezvous".
std::string_view model_name(CommModel model);

}  // namespace stagecraft
