#include "captured_pieces.h"

#include <functional>
#include <map>
#include <sstream>

namespace stagecraft {

std::string CapturedPieces::forms() const {
  std::string all;
  for (const CapturedMessage& message : messages) {
    all += (message.is_sent ? "s " : "r ") + to_text(message.tag) + ":";
    std::string looks = message.header + "|" + (message.form ? *message.form : std::string());
    for (std::size_t t = 0; t < message.tensors.size(); ++t) {
      const at::Tensor& tensor = message.tensors[t];
      looks += '|';
      if (!tensor.defined()) continue;
      looks += c10::toString(tensor.scalar_type());
      for (const std::int64_t size : tensor.sizes()) looks += ' ' + std::to_string(size);
      looks += message.needs_gradients[t] ? "g" : "";
    }
    all += std::to_string(std::hash<std::string>()(looks)) + "\n";
  }
  return all;
}

std::string first_difference(const std::vector<std::string>& forms) {
  std::map<std::string, std::string> sent;
  const auto for_each = [&](char kind, const auto& use) {
    for (const std::string& of_rank : forms) {
      std::istringstream lines(of_rank);
      for (std::string line; std::getline(lines, line);) {
        const std::size_t colon = line.rfind(':');
        if (line.front() == kind) use(line.substr(2, colon - 2), line.substr(colon + 1));
      }
    }
  };
  for_each('s', [&](const std::string& tag, const std::string& form) { sent[tag] = form; });
  std::string different;
  for_each('r', [&](const std::string& tag, const std::string& form) {
    if (sent[tag] != form && different.empty()) different = tag;
  });
  return different;
}

}  // namespace stagecraft
