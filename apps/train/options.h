#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "loss_text.h"

namespace CLI {
class App;
}

namespace stagecraft::train {

struct Options {
  std::string model;
  std::vector<std::string> load;  ///< Libraries with operators of the model.

  // Data
  std::vector<std::string> data;     ///< .safetensors, .bin or .npy; the rows of several files follow each other.
  std::vector<std::string> targets;  ///< With inputs in .npy: the targets in .npy.
  std::string target = "target";
  std::string token_type = "auto";
  std::int64_t length = 0;  ///< Tokens per row; 0: as the model says.
  bool in_order = false;
  std::uint64_t seed = 0;
  std::int64_t steps = 100;
  std::int64_t batch = 8;
  std::string loss = "cross_entropy";
  std::vector<LossTerm> terms;                  ///< What `loss` says.
  std::string loss_weight = "auto";             ///< "rows", "counted", or "auto": "counted" for classes.
  std::optional<std::int64_t> class_dimension;  ///< The dimension of the output; none: the one that fits.
  double label_smoothing = 0;
  std::string output;  ///< Name of the model's output that the loss takes; empty: "logits", or the first.

  // Evaluation
  std::vector<std::string> eval_data;
  std::vector<std::string> eval_targets;
  double eval_share = 0;  ///< Share of the rows of `data` that is held out.
  std::int64_t eval_every = 0;
  std::int64_t eval_batches = 0;  ///< 0: all of them.

  // Pipeline
  int ranks = 1;
  int replicas = 1;
  int threads = 0;              ///< Per rank; 0: its share of the cores.
  std::string device = "auto";  ///< "cpu", "cuda" or "auto": CUDA if there is any.
  double timeout = 300;         ///< Seconds.
  std::string schedule = "1F1B";
  int stages_per_rank = 0;
  int microbatches = 1;
  std::vector<std::string> at;  ///< "module" or "module:end".
  bool marked = false;
  std::string shard = "none";
  std::string precision = "float32";
  std::string reduce_type;  ///< Empty: that of the parameters.
  std::vector<std::string> freeze;
  std::string recompute = "none";  ///< "none", "stage" or a number of layers.
  std::string graph = "off";       ///< "on", "off", or "auto": on where it is possible.
  std::string passes;              ///< Empty: the usual ones.
  std::int64_t bucket_bytes = 0;   ///< 0: the usual number.

  // Optimizer
  std::string optimizer = "adamw";
  double rate = 1e-3;
  std::string rate_schedule = "constant";
  std::int64_t warm_up = 0;
  std::int64_t rate_steps = 0;  ///< 0: `steps`.
  double last_rate = 0;
  double weight_decay = -1;  ///< Negative: the optimizer's usual.
  std::vector<std::string> no_decay;
  double momentum = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  int accumulate = 1;
  double clip_norm = 0;   ///< 0: no limit.
  double clip_value = 0;  ///< 0: no limit.

  // Files
  std::string save;
  std::string checkpoints;  ///< A folder.
  int keep = 3;
  std::int64_t save_every = 0;
  bool resume = false;
  bool new_data = false;
  bool new_rate = false;
  std::string save_weights;
  std::string save_program;
  std::string losses;   ///< A CSV file.
  std::string metrics;  ///< A file of JSON lines.
  int page = 0;         ///< Port of a page that shows the run; 0: none.
  std::string page_host = "127.0.0.1";
  std::int64_t report = 10;

  /// Rows of one update of the parameters, over all replicas.
  [[nodiscard]] std::int64_t rows_per_step() const { return batch * replicas * accumulate; }
  [[nodiscard]] bool evaluates() const { return !eval_data.empty() || eval_share > 0; }
};

/// Adds the command-line options to the parser.
void add_options(CLI::App& parser, Options& options);

/// Parses the command line. Returns false, with the exit code in `code`, if the program should end. Prints help and
/// errors.
bool parse(int argc, char** argv, Options& options, int& code);

}  // namespace stagecraft::train
