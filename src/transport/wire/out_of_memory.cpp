#include "out_of_memory.h"

#include <sstream>

#include "words_of.h"

namespace stagecraft::wire {
namespace {

std::string out_of_memory_text(RankId own, RankId from, const Envelope& envelope, const TensorForm* form,
                               const std::exception& reason) {
  std::ostringstream text;
  text << "rank " << own.value << " is out of memory: it has no room for ";
  if (form != nullptr) {
    text << form->bytes() << " bytes (" << c10::toString(form->type) << ' ' << at::IntArrayRef(form->sizes) << ") of ";
  } else {
    text << envelope.header_blob << " bytes of ";
  }
  text << to_text(envelope.tag) << " from rank " << from.value << " (" << words_of(reason)
       << "): smaller microbatches, or a schedule with fewer of them in flight, need less";
  return text.str();
}

}  // namespace

OutOfMemory::OutOfMemory(RankId own, RankId from, const Envelope& envelope, const TensorForm* form,
                         const std::exception& reason)
    : TransportError(out_of_memory_text(own, from, envelope, form, reason), from) {}

}  // namespace stagecraft::wire
