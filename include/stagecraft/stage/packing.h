#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stagecraft/stage/value.h"
#include "stagecraft/transport/message.h"

/// Values as messages.
namespace stagecraft {

/// Packs the values that cross one boundary, microbatch after microbatch. The tensors of the trees stand one after the
/// other in the message; everything else about them is its form.
class Packer {
 public:
  /// The form is the same object as that of an earlier message, of the last few kinds, that looked the same.
  Message pack(const ValueList& values);

 private:
  std::vector<std::shared_ptr<const std::string>> forms_;  // the latest last
  std::string tree_;                                       // of the values at hand; kept for its memory
};

inline Message pack(const ValueList& values) { return Packer().pack(values); }
/// Puts the values of a message at the end of `values`. Throws TransportError when its form is not one that `pack`
/// makes.
void unpack(Message message, ValueList& values);
inline ValueList unpack(Message message) {
  ValueList values;
  unpack(std::move(message), values);
  return values;
}

}  // namespace stagecraft
