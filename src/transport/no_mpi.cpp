// In place of mpi/ when Stagecraft is built without MPI.

#include "stagecraft/core/error.h"
#include "stagecraft/transport/mpi.h"

namespace stagecraft {

class MpiProcess::Implementation {};

bool has_mpi() { return false; }

MpiProcess::MpiProcess(Timeout /*timeout*/) {
  throw TransportError(
      "Stagecraft was built without MPI: install libopenmpi-dev (or libmpich-dev) and build again, or run with threads",
      RankId(-1));
}
MpiProcess::~MpiProcess() = default;
RankId MpiProcess::rank() const { return RankId(0); }
int MpiProcess::ranks() const { return 1; }
int MpiProcess::local_rank() const { return 0; }
int MpiProcess::cores() const { return 0; }
std::shared_ptr<Transport> MpiProcess::connect(std::optional<at::Device> /*device*/,
                                               std::function<std::string()> /*activity*/) {
  return nullptr;
}
void MpiProcess::uses_too(const std::shared_ptr<Transport>& /*transport*/) {}
void MpiProcess::set_reported() {}
int MpiProcess::finish(const std::optional<std::string>& /*failure*/) { return 1; }

}  // namespace stagecraft
