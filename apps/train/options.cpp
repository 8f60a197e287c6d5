#include "options.h"

#include <CLI/CLI.hpp>
#include <iostream>

namespace stagecraft::train {
namespace {

constexpr const char* kFooter =
    "The data file has one tensor per input of the model, under its name, and the targets; rows are examples. Batches "
    "are\n"
    "rows in an order that the seed fixes, so a run that is resumed goes on as if it had never stopped.\n"
    "\n"
    "Examples:\n"
    "  stagecraft train gpt.pt2 --data text.safetensors --loss cross_entropy --steps 1000 --save gpt.safetensors\n"
    "  stagecraft train gpt.pt2 --data text.safetensors --schedule InterleavedZeroBubble --ranks 2 --microbatches 8\n"
    "  mpirun -n 4 stagecraft train gpt.pt2 --data text.safetensors --schedule ZBVZeroBubble --microbatches 16 --save "
    "gpt.safetensors --resume";

}  // namespace

void add_options(CLI::App& parser, Options& options) {
  parser.add_option("model", options.model, "Exported by torch.export.save")->required()->type_name("FILE.pt2");
  parser.add_option("--data", options.data, "Inputs and targets")->required()->type_name("FILE.safetensors");
  parser.add_option("--target", options.target, "The tensor of the data that holds the targets")->capture_default_str();
  parser.add_option("--loss", options.loss, "cross_entropy: classes along the last dimension; mse")
      ->check(CLI::IsMember({"cross_entropy", "mse"}))
      ->capture_default_str();
  parser.add_option("--output", options.output, "Which output of the model the loss takes ('logits', or the first)");
  parser.add_option("--steps", options.steps, "Train up to this step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  parser.add_option("--batch", options.batch, "Rows per step and replica")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  parser.add_flag("--in-order", options.in_order, "Take rows as they come");
  parser.add_option("--seed", options.seed, "Fixes the order of rows, and dropout")->capture_default_str();
  parser.add_option("--ranks", options.ranks, "Of the pipeline, as threads; mpirun decides otherwise")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  parser.add_option("--replicas", options.replicas, "Pipelines side by side")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  parser.add_option("--device", options.device, "cpu, cuda, or auto: cuda where there is any")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  parser.add_option("--schedule", options.schedule, "A known schedule (stagecraft list), or a CSV file")
      ->capture_default_str();
  parser.add_option("--microbatches", options.microbatches, "Per step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  parser
      .add_option("--at", options.at,
                  "Cut at the beginning of this module, or at its end (name:end); otherwise balanced")
      ->type_name("MODULE[:end]");
  parser.add_flag("--marked", options.marked, "Cut where the model says so");
  parser.add_option("--optimizer", options.optimizer, "adamw, adam or sgd")
      ->check(CLI::IsMember({"adamw", "adam", "sgd"}))
      ->capture_default_str();
  parser.add_option("--lr", options.rate, "Learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  parser.add_option("--weight-decay", options.weight_decay, "Otherwise the optimizer's usual")
      ->check(CLI::NonNegativeNumber);
  parser.add_option("--momentum", options.momentum, "Of sgd")->check(CLI::NonNegativeNumber);
  parser.add_option("--save", options.save, "Weights, optimizer and step, at the end")->type_name("FILE.safetensors");
  parser.add_option("--save-every", options.save_every, "And after so many steps")->check(CLI::PositiveNumber);
  parser.add_flag("--resume", options.resume, "Go on from the file of --save, if there is one");
  parser.add_option("--save-weights", options.save_weights, "Weights alone, at the end, for load_state_dict in Python")
      ->type_name("FILE.safetensors");
  parser.add_option("--losses", options.losses, "The loss of every step")->type_name("FILE.csv");
  parser.add_option("--report", options.report, "Print every so many steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
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
    if (options.resume && options.save.empty())
      throw CLI::ValidationError("--resume goes on from the file of --save: give one");
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
