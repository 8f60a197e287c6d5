#include "objective_check.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "stagecraft/core/error.h"

namespace stagecraft::train {
namespace {

using graph::TensorType;

std::string type_text(const TensorType& type) {
  return std::string(graph::text(type.element)) + " " + graph::text(type.sizes);
}

/// Whether targets may have this size where the output has that one. Rows are counted elsewhere.
bool fits(const graph::Size& size, std::int64_t of_targets, bool are_rows) {
  return are_rows || !size.fixed() || size.value == of_targets;
}

/// Whether targets are as large as the output without one of its dimensions; -1: with all of them.
bool fits_without(const TensorType& output, std::int64_t left_out, std::int64_t rows, const TensorSpec& targets) {
  const auto dimensions = static_cast<std::int64_t>(output.sizes.size());
  if (static_cast<std::int64_t>(targets.sizes.size()) != dimensions - (left_out < 0 ? 0 : 1)) return false;
  std::size_t at = 0;
  for (std::int64_t d = 0; d < dimensions; ++d) {
    if (d == left_out) continue;
    if (!fits(output.sizes[static_cast<std::size_t>(d)], targets.sizes[at++], d == rows)) return false;
  }
  return true;
}

}  // namespace

ObjectiveCheck::ObjectiveCheck(const Options& options, const Pipe& pipe, const WantedData& wanted, const Data& data,
                               at::Device device)
    : options_(options),
      program_(pipe.program()),
      wanted_(wanted),
      data_(data),
      device_(device),
      ports_(graph::output_ports(program_)) {
  for (const LossTerm& text : options.terms) add(text);
  for (const auto& [name, along] : target_rows_) {
    if (const auto rows = data.other_rows(name, along)) {
      faults_.add(data.path() + ": the targets '" + name + "' have " + std::to_string(*rows) +
                  " rows along dimension " + std::to_string(along) + ", and the inputs have " +
                  std::to_string(data.rows()));
    }
  }
  if (!faults_.empty()) throw InvalidArgument(faults_.text());
}

void ObjectiveCheck::refuse(const Term& term, const std::string& why) {
  faults_.add("the loss " + term.text.name + " does not fit: " + why);
}

void ObjectiveCheck::add(const LossTerm& text) {
  Term term;
  term.text = text;
  const bool needs_targets = text.criterion != Criterion::kOutput;
  term.targets = text.targets.empty() && needs_targets ? options_.target : text.targets;
  term.options.label_smoothing = options_.label_smoothing;
  const bool is_program = text.criterion == Criterion::kProgram;
  if (is_program) term.program = std::make_shared<const ExportedLoss>(text.name, device_);
  find_output(term);
  const TensorType* const output = output_type(term);
  if (output != nullptr) term.options.row_dimension = rows_in(*output);
  if (output != nullptr && !is_program) {
    if (!graph::is_differentiable(output->element)) {
      refuse(term, "the output is " + type_text(*output) + ", which has no gradient: choose another with --output");
    } else if (text.criterion == Criterion::kOutput) {
      const bool is_number = std::all_of(output->sizes.begin(), output->sizes.end(),
                                         [](const graph::Size& size) { return size.fixed() && size.value == 1; });
      if (!is_number) refuse(term, "the output is " + type_text(*output) + ", not one number: let the model reduce it");
      if (!term.targets.empty()) set_rows(term, 0);
    } else if (takes_classes(text.criterion)) {
      check_classes(term, *output, data_.spec_of_targets(term.targets));
    } else {
      check_elements(term, *output, data_.spec_of_targets(term.targets));
    }
  }
  if (is_program) check_program(term);
  terms_.push_back(std::move(term));
}

// --- outputs ---

std::string ObjectiveCheck::output_names() const {
  std::string names;
  for (const graph::Port& port : ports_) {
    if (graph::tensor_of(program_, port) != nullptr) names += (names.empty() ? "" : ", ") + port.name;
  }
  return names.empty() ? "one without a name" : names;
}

const TensorType* ObjectiveCheck::output_type(const Term& term) const {
  return term.output ? graph::tensor_of(program_, ports_[*term.output]) : nullptr;
}

std::optional<std::size_t> ObjectiveCheck::usual_output(Criterion criterion) const {
  const char* const usual = criterion == Criterion::kOutput ? "loss" : "logits";
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const TensorType* const tensor = graph::tensor_of(program_, ports_[i]);
    if (tensor == nullptr) continue;
    if (ports_[i].name == usual) return i;
    const bool may_be = criterion != Criterion::kOutput || tensor->sizes.empty();
    if (!first && may_be) first = i;
  }
  return first;
}

void ObjectiveCheck::find_output(Term& term) {
  const std::string& name = term.text.output.empty() ? options_.output : term.text.output;
  if (name.empty()) {
    const bool takes_all = term.program && term.program->output().tree.kind != graph::Tree::Kind::kLeaf;
    if (takes_all) return;
    term.output = usual_output(term.text.criterion);
    if (!term.output) {
      refuse(term, std::string("the model has no output that is ") +
                       (term.text.criterion == Criterion::kOutput ? "one number" : "a tensor") + ": it has " +
                       output_names());
    }
    return;
  }
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i].name == name && graph::tensor_of(program_, ports_[i]) != nullptr) term.output = i;
  }
  if (!term.output) refuse(term, "there is no output '" + name + "': the model has " + output_names());
}

std::int64_t ObjectiveCheck::rows_in(const TensorType& output) const {
  return std::max(0, graph::dimension_of(output, wanted_.symbol));
}

void ObjectiveCheck::set_rows(const Term& term, std::int64_t along) {
  for (const auto& [name, known] : target_rows_) {
    if (name != term.targets) continue;
    if (known != along) {
      refuse(term, "it takes the rows of '" + name + "' along dimension " + std::to_string(along) +
                       ", another term along " + std::to_string(known) + ": give them targets of their own");
    }
    return;
  }
  target_rows_.emplace_back(term.targets, along);
}

// --- criteria ---

void ObjectiveCheck::check_elements(const Term& term, const TensorType& output, const TensorSpec& targets) {
  set_rows(term, rows_in(output));
  if (at::isComplexType(targets.dtype)) refuse(term, "the targets '" + term.targets + "' are complex");
  if (fits_without(output, -1, rows_in(output), targets)) return;
  refuse(term, "it takes targets of the shape of the output, which is " + type_text(output) + ", but '" + term.targets +
                   "' is " + targets.text());
}

void ObjectiveCheck::check_classes(Term& term, const TensorType& output, const TensorSpec& targets) {
  const std::int64_t rows = rows_in(output);
  const auto dimensions = static_cast<std::int64_t>(output.sizes.size());
  const bool are_classes = at::isIntegralType(targets.dtype, /*includeBool=*/false);
  const bool are_shares = at::isFloatingType(targets.dtype) && term.text.criterion == Criterion::kCrossEntropy;
  std::vector<std::int64_t> fitting;
  for (std::int64_t d = 0; d < dimensions; ++d) {
    if (d != rows && fits_without(output, are_shares ? -1 : d, rows, targets)) fitting.push_back(d);
  }
  if (const std::optional<std::int64_t> asked = options_.class_dimension) {
    const std::int64_t own = *asked < 0 ? *asked + dimensions : *asked;
    std::erase_if(fitting, [&](std::int64_t d) { return d != own; });
  }
  if ((!are_classes && !are_shares) || fitting.empty()) {
    set_rows(term, 0);
    refuse(term, "it takes integer targets of the dimensions of the output without that of the classes" +
                     std::string(term.text.criterion == Criterion::kCrossEntropy
                                     ? ", or shares of the classes in the shape of the output"
                                     : "") +
                     ": the output is " + type_text(output) + ", and '" + term.targets + "' is " + targets.text());
    return;
  }
  if (fitting.size() > 1) {
    set_rows(term, 0);
    refuse(term, "the classes may be along dimension " + std::to_string(fitting.front()) + " or " +
                     std::to_string(fitting.back()) + " of the output, " + type_text(output) +
                     ": say which with --class-dimension");
    return;
  }
  const std::int64_t dimension = fitting.front();
  term.options.class_dimension = dimension;
  const graph::Size& size = output.sizes[static_cast<std::size_t>(dimension)];
  term.counts_classes = are_classes;
  if (size.fixed()) term.classes = size.value;
  set_rows(term, are_classes && dimension < rows ? rows - 1 : rows);
}

// --- exported losses ---

void ObjectiveCheck::check_program(Term& term) {
  const ModelLeaf& takes = term.program->target().leaves.front();
  set_rows(term, takes.rows.value_or(0));
  const TensorSpec targets = data_.spec_of_targets(term.targets);
  TensorSpec wanted = *takes.tensor;
  bool agrees = wanted.dtype == targets.dtype && wanted.sizes.size() == targets.sizes.size();
  for (std::size_t d = 0; agrees && d < wanted.sizes.size(); ++d) {
    const bool are_rows = static_cast<std::int64_t>(d) == takes.rows.value_or(0);
    agrees = are_rows || wanted.sizes[d] == TensorSpec::kAny || wanted.sizes[d] == targets.sizes[d];
  }
  if (!agrees) {
    refuse(term, "'" + term.targets + "' is " + targets.text() + ", but it takes " + wanted.text() +
                     ": export it for such targets");
  }
  if (const auto rows = term.program->static_rows(); rows && *rows * options_.microbatches != options_.batch) {
    refuse(term, "it was exported for microbatches of exactly " + std::to_string(*rows) +
                     " rows: export it with a dynamic batch (torch.export.Dim), or give --batch " +
                     std::to_string(*rows * options_.microbatches));
  }
  check_program_output(term);
}

void ObjectiveCheck::check_program_output(const Term& term) {
  const ModelInput& takes = term.program->output();
  std::vector<std::size_t> given;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    if (!term.output || *term.output == i) given.push_back(i);
  }
  if (!term.output && takes.tree != program_.result) {
    refuse(term, "its first input, '" + takes.name +
                     "', is nested in another way than the outputs of the model: choose one of them with --output, or "
                     "export a function of just these outputs");
    return;
  }
  for (std::size_t i = 0; i < given.size() && i < takes.leaves.size(); ++i) {
    const TensorType* const output = graph::tensor_of(program_, ports_[given[i]]);
    const std::optional<TensorSpec>& wanted = takes.leaves[i].tensor;
    if (output == nullptr || !wanted) continue;
    const bool same_type = term.program->types()[i].element == output->element || options_.precision != "float32";
    bool agrees = same_type && wanted->sizes.size() == output->sizes.size();
    for (std::size_t d = 0; agrees && d < output->sizes.size(); ++d) {
      agrees = wanted->sizes[d] == TensorSpec::kAny || !output->sizes[d].fixed() ||
               wanted->sizes[d] == output->sizes[d].value;
    }
    if (!agrees) {
      refuse(term, "'" + takes.leaves[i].name + "' takes " + wanted->text() + ", but the output is " +
                       type_text(*output) + ": export it for this output");
    }
  }
}

}  // namespace stagecraft::train
