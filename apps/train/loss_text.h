#pragma once

#include <string>
#include <vector>

/// What `--loss` says.
namespace stagecraft::train {

enum class Criterion {
  kCrossEntropy,
  kNll,
  kMse,
  kL1,
  kHuber,
  kBce,
  kBceLogits,
  kKl,
  kOutput,   ///< The model returns its loss.
  kProgram,  ///< An exported function of output and target.
};

/// Whether the targets of the criterion may be classes, of which some do not count.
bool takes_classes(Criterion criterion);

/// One term of a weighted sum.
struct LossTerm {
  double weight = 1;
  Criterion criterion = Criterion::kCrossEntropy;
  std::string name;     ///< As it was written: "mse", or the path of a program.
  std::string output;   ///< Which one of the model; empty: see Options::output.
  std::string targets;  ///< Which tensor of the data; empty: see Options::target.
};

/// "cross_entropy(logits, labels) + 0.5 * mse(value, score)". Throws InvalidArgument.
std::vector<LossTerm> parse_loss(const std::string& text);

}  // namespace stagecraft::train
