#include <algorithm>
#include <array>
#include <cstdlib>

#include "stagecraft/transport/mpi.h"

namespace stagecraft {
namespace {

/// What torchrun sets for its workers. They inherit the variables of whoever has started torchrun itself, such as srun,
/// whose ranks they are not.
bool is_started_by_torchrun() {
  constexpr std::array kSigns = {"TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  return std::all_of(kSigns.begin(), kSigns.end(), [](const char* sign) {
    const char* value = std::getenv(sign);
    return value != nullptr && *value != 0;
  });
}

}  // namespace

bool is_started_by_mpi() {
  if (is_started_by_torchrun()) return false;
  // Open MPI, MPICH and its relatives, anything with PMIx (Slurm among them).
  constexpr std::array kSigns = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
  for (const char* sign : kSigns) {
    if (std::getenv(sign) != nullptr) return true;
  }
  return false;
}

}  // namespace stagecraft
