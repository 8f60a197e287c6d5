#include "stagecraft/core/host.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace stagecraft {

std::string running_host() {
  std::string id;
  if (std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id) && !id.empty()) return id;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace stagecraft
