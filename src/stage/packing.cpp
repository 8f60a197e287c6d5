// A form spells the trees: T tensor, N none, t f true and false, i and d with eight bytes, s with a length and text,
// L and D with a count.

#include "stagecraft/stage/packing.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

class Writer {
 public:
  Writer(std::string& tree, std::vector<at::Tensor>& tensors) : tree_(tree), tensors_(tensors) {}

  void put(const Value& value) { std::visit(*this, value.held()); }
  void operator()(std::monostate) { tree_ += 'N'; }
  void operator()(const at::Tensor& tensor) {
    tree_ += 'T';
    tensors_.push_back(tensor);
  }
  void operator()(bool flag) { tree_ += flag ? 't' : 'f'; }
  void operator()(std::int64_t number) { put_raw('i', number); }
  void operator()(double number) { put_raw('d', number); }
  void operator()(const std::string& text) {
    put_raw('s', std::uint32_t(text.size()));
    tree_ += text;
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
  void operator()(const OpaquePtr& opaque) {
    throw InvalidArgument(opaque->kind() +
                          " cannot be sent to another rank: let stages return tensors, numbers, text, none, and lists "
                          "and dicts of them");
  }

 private:
  template <typename Raw>
  void put_raw(char kind, Raw raw) {
    tree_ += kind;
    tree_.append(reinterpret_cast<const char*>(&raw), sizeof raw);
  }

  std::string& tree_;
  std::vector<at::Tensor>& tensors_;
};

class Reader {
 public:
  Reader(std::string_view tree, std::vector<at::Tensor>& tensors) : tree_(tree), tensors_(tensors) {}

  void read(ValueList& values) {
    while (at_ < tree_.size()) values.push_back(next());
    if (tensor_ != tensors_.size()) refuse();
  }

 private:
  Value next() {
    switch (take()) {
      case 'N':
        return {};
      case 'T':
        if (tensor_ == tensors_.size()) refuse();
        return std::move(tensors_[tensor_++]);
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
        auto left = take_raw<std::uint32_t>();
        if (left > tree_.size() - at_) refuse();  // each takes a letter at least
        list.reserve(left);
        for (; left > 0; --left) list.push_back(next());
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
    if (at_ == tree_.size()) refuse();
    return tree_[at_++];
  }
  template <typename Raw>
  Raw take_raw() {
    Raw raw;
    if (tree_.size() - at_ < sizeof raw) refuse();
    std::memcpy(&raw, tree_.data() + at_, sizeof raw);
    at_ += sizeof raw;
    return raw;
  }
  std::string text() {
    const auto size = take_raw<std::uint32_t>();
    if (tree_.size() - at_ < size) refuse();
    at_ += size;
    return std::string(tree_.substr(at_ - size, size));
  }
  [[noreturn]] void refuse() const {
    throw TransportError("a message's form ends early or says something unknown at byte " + std::to_string(at_) +
                             " of " + std::to_string(tree_.size()) +
                             ": do all ranks run the same version of Stagecraft?",
                         RankId(-1));
  }

  std::string_view tree_;
  std::vector<at::Tensor>& tensors_;
  std::size_t at_ = 0;
  std::size_t tensor_ = 0;
};

}  // namespace

Message Packer::pack(const ValueList& values) {
  constexpr std::size_t kForms = 8;
  Message message;
  std::size_t tensors = 0;
  for (const Value& value : values) tensors += value.count_tensors();
  message.tensors.reserve(tensors);
  tree_.clear();
  Writer writer(tree_, message.tensors);
  for (const Value& value : values) writer.put(value);
  const auto known = std::find_if(forms_.begin(), forms_.end(), [&](const auto& form) { return *form == tree_; });
  if (known != forms_.end()) {
    message.form = *known;
    return message;
  }
  if (forms_.size() == kForms) forms_.erase(forms_.begin());
  message.form = forms_.emplace_back(std::make_shared<const std::string>(tree_));
  return message;
}

void unpack(Message message, ValueList& values) {
  Reader(message.form ? std::string_view(*message.form) : "?", message.tensors).read(values);
}

}  // namespace stagecraft
