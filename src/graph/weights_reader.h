#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "stagecraft/core/faults.h"
#include "stagecraft/graph/program.h"

namespace stagecraft::graph {

/// By full name.
struct StoredTensors {
  std::map<std::string, StoredTensor> tensors;
  std::set<std::string> refused;  ///< Those with a fault.
};

/// The tensors that a folder's configuration lists, each checked to lie inside its record. What is wrong with them goes
/// to `faults`. A folder without configuration has none.
StoredTensors read_stored(const ZipArchive& archive, const std::string& folder, const std::string& configuration,
                          Faults& faults);

}  // namespace stagecraft::graph
