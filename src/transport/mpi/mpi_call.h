#pragma once

#include <c10/core/Event.h>
#include <mpi.h>

#include <algorithm>
#include <string>
#include <vector>

#include "stagecraft/core/error.h"

/// Checks of what MPI calls return.
namespace stagecraft::mpi {

/// Throws TransportError unless `code` is MPI_SUCCESS.
inline void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw TransportError(std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)),
                       RankId(-1));
}

inline bool all_done(std::vector<MPI_Request>& requests) {
  int done = 0;
  check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  return done != 0;
}

inline bool all_happened(const std::vector<c10::Event>& events) {
  return std::all_of(events.begin(), events.end(), [](const c10::Event& event) { return event.query(); });
}

}  // namespace stagecraft::mpi
