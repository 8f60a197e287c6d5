#include <array>
#include <cstdlib>

#include "stagecraft/transport/mpi.h"

namespace stagecraft {

bool is_started_by_mpi() {
  // Open MPI, MPICH and its relatives, anything with PMIx (Slurm among them).
  constexpr std::array kSigns = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
  for (const char* sign : kSigns) {
    if (std::getenv(sign) != nullptr) return true;
  }
  return false;
}

}  // namespace stagecraft
