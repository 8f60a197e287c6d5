#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>

#include "stagecraft/core/error.h"

namespace stagecraft::train {
namespace {

constexpr const char* kFooter =
    "Data is a file of tokens (.bin of nanoGPT or llm.c, or a .npy array of one dimension): rows are windows of it, "
    "and "
    "the\n"
    "targets are the tokens that follow. Or a .safetensors file with one tensor per input of the model, under its "
    "name, "
    "and\n"
    "the targets; or the input in one .npy file and the targets in another. Rows come in an order that the seed fixes, "
    "and a\n"
    "checkpoint says how far the data was read: a run that is resumed goes on as if it had never stopped.\n"
    "\n"
    "Examples:\n"
    "  stagecraft train gpt.pt2 --data train.bin --eval-data valid.bin --eval-every 100 --steps 1000 --metrics "
    "run.jsonl\n"
    "  stagecraft train gpt.pt2 --data text.safetensors --schedule InterleavedZeroBubble --ranks 2 --microbatches 8\n"
    "  mpirun -n 4 stagecraft train gpt.pt2 --data train.bin --schedule ZBVZeroBubble --microbatches 16 --save "
    "gpt.safetensors --resume";

/// The checks have no description: the type in the help says it, and completion reads the type.
template <typename Number>
std::string whole_fault(const std::string& text, Number least) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  // CLI11 would read 010 as eight.
  const bool is_octal = text.size() > 1 && text.front() == '0';
  if (error == std::errc() && last == end && !is_octal && value >= least) return {};
  return "'" + text + "' is not a whole number from " + std::to_string(least) + " up";
}

std::string number_fault(const std::string& text, double least, bool may_be_least, double end_of_range) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  const bool fits = value > least || (may_be_least && value == least);
  if (error == std::errc() && last == end && std::isfinite(value) && fits && value < end_of_range) return {};
  std::string range = may_be_least ? "of at least " : "above ";
  range += CLI::detail::to_string(least);
  if (std::isfinite(end_of_range)) range += " and below " + CLI::detail::to_string(end_of_range);
  return "'" + text + "' is not a number " + range;
}

/// Adds options to one section of the help.
class Section {
 public:
  Section(CLI::App& parser, std::string name) : parser_(parser), name_(std::move(name)) {}

  template <typename Target>
  CLI::Option* add(const std::string& flag, Target& target, const std::string& description) {
    return parser_.add_option(flag, target, description)->group(name_);
  }
  CLI::Option* flag(const std::string& flag, bool& target, const std::string& description) {
    return parser_.add_flag(flag, target, description)->group(name_);
  }
  /// The ending is part of the type, for the help; the completion offers files.
  template <typename Target>
  CLI::Option* file(const std::string& flag, Target& target, const std::string& ending,
                    const std::string& description) {
    // Several files by the flag several times: what follows a file may be another argument.
    return add(flag, target, description)->type_name("FILE" + ending)->allow_extra_args(false);
  }
  CLI::Option* choice(const std::string& flag, std::string& target, const std::vector<std::string>& words,
                      const std::string& description) {
    const std::string shown = CLI::detail::join(words, "|");
    return add(flag, target, description)
        ->type_name(shown)
        ->check([=](const std::string& text) {
          const bool is_known = std::find(words.begin(), words.end(), text) != words.end();
          return is_known ? std::string() : "'" + text + "' is not one of " + shown;
        })
        ->capture_default_str();
  }
  /// A whole number from 1 up; 0, which stands for the default, is not shown.
  template <typename Number>
  CLI::Option* count(const std::string& flag, Number& target, const std::string& description) {
    CLI::Option* const option = add(flag, target, description)->type_name("N")->check([](const std::string& text) {
      return whole_fault<Number>(text, 1);
    });
    return target == 0 ? option : option->capture_default_str();
  }
  /// A number above 0.
  CLI::Option* positive(const std::string& flag, double& target, const std::string& description,
                        double end_of_range = INFINITY) {
    CLI::Option* const option = add(flag, target, description)->type_name("X")->check([=](const std::string& text) {
      return number_fault(text, 0, /*may_be_least=*/false, end_of_range);
    });
    return target == 0 ? option : option->capture_default_str();
  }
  /// A number of at least 0.
  CLI::Option* number(const std::string& flag, double& target, const std::string& description,
                      double end_of_range = INFINITY) {
    return add(flag, target, description)->type_name("X")->check([=](const std::string& text) {
      return number_fault(text, 0, /*may_be_least=*/true, end_of_range);
    });
  }

 private:
  CLI::App& parser_;
  std::string name_;
};

void add_data_options(CLI::App& parser, Options& options) {
  Section data(parser, "Data");
  data.file("--data", options.data, "",
            "Tokens (.bin, .npy), or inputs and targets (.safetensors), or inputs (.npy); of several, one after the "
            "other")
      ->required();
  data.file("--targets", options.targets, ".npy", "The targets of inputs in a .npy file");
  data.add("--target", options.target, "The tensor of a .safetensors file that holds the targets")
      ->capture_default_str();
  data.choice("--token-type", options.token_type, {"auto", "uint16", "uint32"},
              "Of a .bin file; auto: as its header says, uint16 without a header");
  data.count("--length", options.length, "Tokens per row, for a model that takes any length");
  data.count("--batch", options.batch, "Rows per step and replica; with --accumulate, that many times as many");
  data.flag("--in-order", options.in_order, "Take rows as they come");
  data.add("--seed", options.seed, "Fixes the order of rows, and dropout")
      ->type_name("N")
      ->check([](const auto& text) { return whole_fault<std::uint64_t>(text, 0); })
      ->capture_default_str();
  data.count("--steps", options.steps, "Train up to this step, which is an update of the parameters");
  Section loss(parser, "Loss");
  loss.add("--loss", options.loss,
           "cross_entropy, nll, mse, l1, huber, bce, bce_with_logits, kl; output: the model returns its loss; a file: "
           "an "
           "exported function of output and target. Or a sum, such as 'cross_entropy(logits, label) + 0.5 * mse(value, "
           "score)', with the names of outputs and targets")
      ->type_name("LOSS|FILE.pt2")
      ->capture_default_str();
  loss.add("--output", options.output,
           "Which output of the model the loss takes ('logits', or the first; for --loss output: 'loss')");
  loss.add("--class-dimension", options.class_dimension,
           "Of the output, for classes; otherwise the one that fits the targets")
      ->type_name("N")
      ->check([](const std::string& text) {
        const bool is_negative = text.starts_with('-');
        return whole_fault<std::int64_t>(text.substr(is_negative ? 1 : 0), 0);
      });
  loss.number("--label-smoothing", options.label_smoothing, "Of cross_entropy", 1);
  loss.choice("--loss-weight", options.loss_weight, {"auto", "rows", "counted"},
              "How much a microbatch counts: its rows, or its targets other than -100; auto: counted for classes");

  Section evaluation(parser, "Evaluation");
  evaluation.file("--eval-data", options.eval_data, "", "Data that is not trained on, of the kind of --data");
  evaluation.file("--eval-targets", options.eval_targets, ".npy", "The targets of --eval-data in a .npy file");
  evaluation.positive("--eval-share", options.eval_share, "Hold out this share of --data instead, its last rows", 1);
  evaluation.count("--eval-every", options.eval_every, "Every so many steps; always after the last one");
  evaluation.count("--eval-batches", options.eval_batches, "So many batches, the first ones; otherwise all whole ones");
}

void add_pipeline_options(CLI::App& parser, Options& options) {
  Section pipeline(parser, "Pipeline");
  pipeline.count("--ranks", options.ranks, "Of the pipeline, as threads; mpirun decides otherwise");
  pipeline.count("--replicas", options.replicas, "Pipelines side by side");
  pipeline.count("--threads", options.threads, "Inside one operation, per rank; otherwise its share of the cores");
  pipeline.choice("--device", options.device, {"auto", "cpu", "cuda"}, "auto: cuda where there is any");
  pipeline.positive("--timeout", options.timeout, "Seconds that a rank waits for another", 1e6);
  pipeline.add("--schedule", options.schedule, "A known schedule (stagecraft list), or a CSV file")
      ->type_name("NAME")
      ->capture_default_str();
  pipeline.count("--stages-per-rank", options.stages_per_rank, "Otherwise the schedule's usual");
  pipeline.count("--microbatches", options.microbatches, "Per batch");
  pipeline.add("--at", options.at, "Cut at the beginning of this module, or at its end (name:end); otherwise balanced")
      ->type_name("MODULE[:end]");
  pipeline.flag("--marked", options.marked, "Cut where the model says so");
  pipeline.choice("--shard", options.shard, {"none", "optimizer", "gradients", "parameters"},
                  "What replicas share instead of holding copies; each includes those before it");
  pipeline.choice("--precision", options.precision,
                  {"float32", "bfloat16", "float16", "autocast-bfloat16", "autocast-float16"},
                  "What modules compute in; the optimizer updates float32, or the type of the model");
  pipeline
      .choice("--reduce-type", options.reduce_type, {"float32", "bfloat16", "float16"},
              "In which replicas send gradients; otherwise that of the parameters")
      ->default_str("");
  pipeline.add("--freeze", options.freeze, "Parameters that are not trained: names, with * and ?")
      ->type_name("PATTERN");
  pipeline
      .add("--recompute", options.recompute,
           "Drop the activations of whole stages, or of every so many layers (a number), and compute them again")
      ->type_name("none|stage")
      ->check([](const std::string& text) {
        if (text == "none" || text == "stage" || whole_fault<std::int64_t>(text, 1).empty()) return std::string();
        return "'" + text + "' is neither none nor stage nor a number of layers";
      })
      ->capture_default_str();
  pipeline.choice("--graph", options.graph, {"on", "off", "auto"},
                  "On a GPU, capture steps as CUDA graphs and replay them; auto: where that is possible");
  pipeline.add("--passes", options.passes, "The passes that lower the schedule; otherwise the usual ones")
      ->type_name("PASSES");
  pipeline.count("--bucket-bytes", options.bucket_bytes, "Replicas average gradients in buckets of this size");
}

void add_optimizer_options(CLI::App& parser, Options& options) {
  Section optimizer(parser, "Optimizer");
  optimizer.choice("--optimizer", options.optimizer, {"adamw", "adam", "sgd"}, "Which one");
  optimizer.positive("--lr", options.rate, "Learning rate, after the warm-up");
  optimizer.choice("--lr-schedule", options.rate_schedule, {"constant", "linear", "cosine"},
                   "How it falls to --lr-last after the warm-up");
  optimizer.count("--warm-up", options.warm_up, "Steps in which it rises to --lr");
  optimizer.count("--lr-steps", options.rate_steps, "Where it reaches --lr-last; otherwise --steps");
  optimizer.number("--lr-last", options.last_rate, "Where it ends");
  optimizer.number("--weight-decay", options.weight_decay, "Otherwise the optimizer's usual");
  optimizer.add("--no-decay", options.no_decay, "Parameters without weight decay: names, with * and ?")
      ->type_name("PATTERN");
  optimizer.number("--momentum", options.momentum, "Of sgd");
  optimizer.number("--beta1", options.beta1, "Of adam and adamw", 1)->capture_default_str();
  optimizer.number("--beta2", options.beta2, "Of adam and adamw", 1)->capture_default_str();
  optimizer.positive("--epsilon", options.epsilon, "Of adam and adamw");
  optimizer.count("--accumulate", options.accumulate, "Batches whose gradients are averaged for one step");
  optimizer.positive("--clip-norm", options.clip_norm, "Limit the norm of all gradients");
  optimizer.positive("--clip-value", options.clip_value, "Limit every element of the gradients, before their norm");
}

void add_file_options(CLI::App& parser, Options& options) {
  Section files(parser, "Files");
  files.file("--save", options.save, ".safetensors", "Weights, optimizer, step and position in the data, at the end");
  files.add("--checkpoints", options.checkpoints, "The same in a folder, one file per save, written beside training")
      ->type_name("FOLDER");
  files.count("--keep", options.keep, "How many files of --checkpoints stay");
  files.count("--save-every", options.save_every, "And after so many steps");
  files.flag("--resume", options.resume, "Go on from --save, or from the last of --checkpoints, if there is one");
  files.flag("--new-data", options.new_data,
             "With --resume: begin with the first row of this data and --seed, whatever was trained on before");
  files.flag("--new-lr", options.new_rate, "With --resume: go on with this run's learning rate, whatever was saved");
  files.file("--save-weights", options.save_weights, ".safetensors",
             "Weights alone, at the end, for load_state_dict in Python");
  files.file("--save-program", options.save_program, ".pt2",
             "The model with its new weights and buffers, at the end, for torch.export.load");
  files.file("--losses", options.losses, ".csv", "The loss of every step");
  files.file("--metrics", options.metrics, ".jsonl",
             "Every step: loss, norm of the gradients, speed, memory, idle time");
  files.count("--page", options.page, "Show the run on a page at this port, or the next that is free")
      ->type_name("PORT");
  files.add("--page-host", options.page_host, "Where the page listens; the default lets in this machine alone")
      ->type_name("ADDRESS")
      ->capture_default_str();
  files.count("--report", options.report, "Print every so many steps, if the output is no terminal");
}

[[noreturn]] void refuse(const std::string& text) { throw CLI::ValidationError(text); }

void check_loss(const Options& options) {
  const auto any = [&](const auto& holds) { return std::any_of(options.terms.begin(), options.terms.end(), holds); };
  const bool has_classes = any([](const LossTerm& term) { return takes_classes(term.criterion); });
  if (options.class_dimension && !has_classes) {
    refuse("--class-dimension is about classes, and the loss is " + options.loss + ": leave it out");
  }
  if (options.label_smoothing > 0 &&
      !any([](const LossTerm& term) { return term.criterion == Criterion::kCrossEntropy; })) {
    refuse("--label-smoothing is for cross_entropy, and the loss is " + options.loss + ": leave it out");
  }
  if (options.loss_weight == "counted") {
    if (options.terms.size() > 1) refuse("--loss-weight is for a loss of one term: leave it out");
    const LossTerm& term = options.terms.front();
    if (term.criterion == Criterion::kOutput && term.targets.empty()) {
      refuse("--loss-weight counted counts targets: name them, as in --loss 'output(loss, labels)'");
    }
  }
}

/// Options that go together, or do not.
void check(const Options& options, const CLI::App& parser) {
  const auto given = [&](const char* flag) { return parser.get_option(flag)->count() > 0; };
  check_loss(options);
  const bool saves = !options.save.empty() || !options.checkpoints.empty();
  if (options.resume && !saves) refuse("--resume goes on from --save or --checkpoints: give one of them");
  if (options.new_data && !options.resume) refuse("--new-data is about --resume: give that too");
  if (options.page > 65535) refuse("--page is a port from 1 to 65535");
  if (given("--page-host") && options.page == 0) refuse("--page-host is about --page: give that too");
  if (options.new_rate && !options.resume) refuse("--new-lr is about --resume: give that too");
  if (options.save_every > 0 && !saves) refuse("--save-every needs --save or --checkpoints: give one of them");
  if (!options.save.empty() && !options.checkpoints.empty()) {
    refuse("--save and --checkpoints both say where to save: give one of them");
  }
  if (given("--keep") && options.checkpoints.empty()) refuse("--keep is about --checkpoints: give that too");
  for (const char* const flag : {"--lr-steps", "--lr-last"}) {
    if (given(flag) && options.rate_schedule == "constant") {
      refuse(std::string(flag) + " is where the learning rate ends, and it is constant: give --lr-schedule");
    }
  }
  if (!options.no_decay.empty() && options.weight_decay == 0) {
    refuse("--no-decay names exceptions from --weight-decay, which is 0: leave it out");
  }
  if (!options.no_decay.empty() && options.weight_decay < 0 && options.optimizer != "adamw") {
    refuse("--no-decay names exceptions from --weight-decay, which " + options.optimizer + " does without: give it");
  }
  if (!options.eval_data.empty() && options.eval_share > 0) {
    refuse("--eval-data and --eval-share both say what to evaluate on: give one of them");
  }
  for (const char* const flag : {"--eval-every", "--eval-batches"}) {
    if (given(flag) && !options.evaluates()) {
      refuse(std::string(flag) + " needs data that is not trained on: give --eval-data or --eval-share");
    }
  }
  if (!options.eval_targets.empty() && options.eval_data.empty())
    refuse("--eval-targets belongs to --eval-data: give that too");
  if (options.shard != "none" && options.replicas == 1) {
    refuse("--shard says what replicas share, but there is only one: give --replicas, or leave out --shard");
  }
  if (given("--momentum") && options.optimizer != "sgd") {
    refuse("--momentum is for sgd, and the optimizer is " + options.optimizer +
           ": leave it out, or give --optimizer sgd");
  }
  for (const char* const flag : {"--beta1", "--beta2", "--epsilon"}) {
    if (given(flag) && options.optimizer == "sgd") {
      refuse(std::string(flag) + " is for adam and adamw, and the optimizer is sgd: leave it out");
    }
  }
}

}  // namespace

void add_options(CLI::App& parser, Options& options) {
  parser.add_option("model", options.model, "Exported by torch.export.save")->required()->type_name("FILE.pt2");
  parser.add_option("--load", options.load, "A shared library that registers operators of the model; once per library")
      ->type_name("LIB.so")
      ->allow_extra_args(false);
  add_data_options(parser, options);
  add_pipeline_options(parser, options);
  add_optimizer_options(parser, options);
  add_file_options(parser, options);
  parser.footer(kFooter);
}

bool parse(int argc, char** argv, Options& options, int& code) {
  CLI::App app("Train a model exported from Python (.pt2), over a pipeline of ranks, without Python.",
               "stagecraft train");
  add_options(app, options);

  std::vector<std::string> arguments;  // CLI11 takes them in reverse
  for (int i = argc - 1; i > 0; --i) {
    if (!std::string_view(argv[i]).starts_with("--stagecraft-")) arguments.emplace_back(argv[i]);
  }
  try {
    app.parse(arguments);
    try {
      options.terms = parse_loss(options.loss);
    } catch (const InvalidArgument& error) {
      throw CLI::ValidationError("--loss", error.what());
    }
    check(options, app);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    code = 0;
  } catch (const CLI::Error& error) {
    std::cerr << "stagecraft: train: " << error.what() << ": see 'stagecraft train --help'\n";
    code = 2;
  }
  return false;
}

}  // namespace stagecraft::train
