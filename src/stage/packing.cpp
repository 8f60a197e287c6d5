// Format of the header: T tensor, N none, t true, f false, i integer and d double with eight bytes, s text with its
// length, L list and D dict with a count.

#include "stagecraft/stage/packing.h"

#include <cstring>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

class Packer {
 public:
  void put(const Value& value) { std::visit(*this, value.held()); }
  void operator()(std::monostate) { message.header += 'N'; }
  void operator()(const at::Tensor& tensor) {
    message.header += 'T';
    message.tensors.push_back(tensor);
  }
  void operator()(bool flag) { message.header += flag ? 't' : 'f'; }
  void operator()(std::int64_t number) { put_raw('i', number); }
  void operator()(double number) { put_raw('d', number); }
  void operator()(const std::string& text) {
    put_raw('s', std::uint32_t(text.size()));
    message.header += text;
  }
  void operator()(const ValueList& list) {
    put_raw('L', std::uint32_t(list.size()));
    for (const Value& item : list) put(item);
  }
  void operator()(const ValueDict& dict) {
    put_raw('D', std::uint32_t(dict.size()));
    for (const auto& [key, item] : dict) {
      (*this)(key);
      put(item);
    }
  }

  Message message;

 private:
  template <typename Raw>
  void put_raw(char kind, Raw raw) {
    message.header += kind;
    message.header.append(reinterpret_cast<const char*>(&raw), sizeof raw);
  }
};

class Unpacker {
 public:
  explicit Unpacker(Message message) : message_(std::move(message)) {}

  ValueList all() {
    ValueList values;
    while (at_ < message_.header.size()) values.push_back(next());
    if (tensor_ != message_.tensors.size()) refuse();
    return values;
  }

 private:
  Value next() {
    switch (take()) {
      case 'N':
        return {};
      case 'T':
        if (tensor_ == message_.tensors.size()) refuse();
        return std::move(message_.tensors[tensor_++]);
      case 't':
        return true;
      case 'f':
        return false;
      case 'i':
        return take_raw<std::int64_t>();
      case 'd':
        return take_raw<double>();
      case 's':
        return text();
      case 'L': {
        ValueList list;
        for (auto left = take_raw<std::uint32_t>(); left > 0; --left) list.push_back(next());
        return list;
      }
      case 'D': {
        ValueDict dict;
        for (auto left = take_raw<std::uint32_t>(); left > 0; --left) {
          if (take() != 's') refuse();
          std::string key = text();
          dict.emplace_back(std::move(key), next());
        }
        return dict;
      }
      default:
        refuse();
    }
  }

  char take() {
    if (at_ == message_.header.size()) refuse();
    return message_.header[at_++];
  }
  template <typename Raw>
  Raw take_raw() {
    Raw raw;
    if (message_.header.size() - at_ < sizeof raw) refuse();
    std::memcpy(&raw, message_.header.data() + at_, sizeof raw);
    at_ += sizeof raw;
    return raw;
  }
  std::string text() {
    const auto size = take_raw<std::uint32_t>();
    if (message_.header.size() - at_ < size) refuse();
    at_ += size;
    return message_.header.substr(at_ - size, size);
  }
  [[noreturn]] void refuse() const {
    throw TransportError("a message's header ends early or says something unknown at byte " + std::to_string(at_) +
                             " of " + std::to_string(message_.header.size()) +
                             ": do all ranks run the same version of Stagecraft?",
                         RankId(-1));
  }

  Message message_;
  std::size_t at_ = 0;
  std::size_t tensor_ = 0;
};

}  // namespace

Message pack(const ValueList& values) {
  Packer packer;
  for (const Value& value : values) packer.put(value);
  return std::move(packer.message);
}

ValueList unpack(Message message) { return Unpacker(std::move(message)).all(); }

}  // namespace stagecraft
