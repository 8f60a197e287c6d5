#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// NCCL's functions, found in the library that LibTorch for CUDA has loaded. Stagecraft is built without NCCL's
/// headers: one build works with any version, and without any.
namespace stagecraft::nccl {

struct Id {
  char bytes[128];
};
using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t

enum Result : int { kSuccess = 0 };
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat32 = 7,
  kFloat64 = 8,
};
enum Operation : int { kSum = 0 };

struct Library {
  int (*ncclGetVersion)(int* version);
  int (*ncclGetUniqueId)(Id* id);
  int (*ncclCommInitRank)(Comm* comm, int ranks, Id id, int rank);
  int (*ncclCommAbort)(Comm comm);
  const char* (*ncclGetErrorString)(int result);
  const char* (*ncclGetLastError)(Comm comm);
  int (*ncclSend)(const void* data, std::size_t count, int type, int peer, Comm comm, Stream stream);
  int (*ncclRecv)(void* data, std::size_t count, int type, int peer, Comm comm, Stream stream);
  int (*ncclBroadcast)(const void* from, void* to, std::size_t count, int type, int root, Comm comm, Stream stream);
  int (*ncclAllReduce)(const void* from, void* to, std::size_t count, int type, int operation, Comm comm,
                       Stream stream);
  int (*ncclAllGather)(const void* from, void* to, std::size_t count, int type, Comm comm, Stream stream);
  int (*ncclReduceScatter)(const void* from, void* to, std::size_t count, int type, int operation, Comm comm,
                           Stream stream);
  int (*ncclGroupStart)();
  int (*ncclGroupEnd)();
};

/// Null where there is no NCCL.
const Library* library();
/// Throws TransportError when there is none.
const Library& need_library();
/// Such as 2.31.1; empty where there is none.
std::string version_text();

/// Throws TransportError, which says what to do where that is known, when `result` is a failure.
void check(int result, const char* call, Comm comm = nullptr);

}  // namespace stagecraft::nccl
