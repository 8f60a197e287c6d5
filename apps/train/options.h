#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stagecraft::train {

struct Options {
  std::string model;
  std::string data;
  std::string target = "target";
  std::string loss = "cross_entropy";
  std::string output;  ///< Name of the model's output that the loss takes; empty: "logits", or the first.

  std::int64_t steps = 100;
  std::int64_t batch = 8;
  bool in_order = false;
  std::uint64_t seed = 0;

  int ranks = 1;
  int replicas = 1;
  std::string device = "auto";  ///< "cpu", "cuda" or "auto": CUDA if there is any.
  std::string schedule = "1F1B";
  int microbatches = 1;
  std::vector<std::string> at;  ///< "module" or "module:end".
  bool marked = false;

  std::string optimizer = "adamw";
  double rate = 1e-3;
  double weight_decay = -1;  ///< Negative: the optimizer's usual.
  double momentum = 0;

  std::string save;
  std::int64_t save_every = 0;
  bool resume = false;
  std::string save_weights;
  std::string losses;  ///< A CSV file.
  std::int64_t report = 10;
};

/// Adds the command-line options to the parser.
void add_options(CLI::App& parser, Options& options);

/// Parses the command line. Returns false, with the exit code in `code`, if the program should end. Prints help and
/// errors.
bool parse(int argc, char** argv, Options& options, int& code);

}  // namespace stagecraft::train
