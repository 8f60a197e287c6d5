#include "random_word.h"

#include <random>

namespace stagecraft {

std::string random_word(std::size_t letters) {
  std::random_device random;
  std::string word;
  while (word.size() < letters) word += "0123456789abcdef"[random() % 16];
  return word;
}

}  // namespace stagecraft
