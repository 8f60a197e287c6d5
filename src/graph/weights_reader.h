#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "stagecraft/core/text.h"
#include "stagecraft/graph/program.h"

namespace stagecraft::graph {

/// Stored tensors by full name.
struct StoredTensors {
  std::map<std::string, StoredTensor> tensors;
  std::set<std::string> refused;  ///< Names of tensors with a fault.
};

/// Reads the tensors that a folder's configuration lists, and checks that each is inside its record. Adds problems to
/// `faults`. Returns nothing for a folder without configuration.
StoredTensors read_stored(const ZipArchive& archive, const std::string& folder, const std::string& configuration,
                          Faults& faults);

}  // namespace stagecraft::graph
