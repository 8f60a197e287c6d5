#pragma once

#include "objective.h"
#include "stagecraft/core/text.h"
#include "stagecraft/graph/ports.h"

namespace stagecraft::train {

/// Finds what the terms of a loss take from the model and the data, before anything is computed.
class ObjectiveCheck {
 public:
  /// Throws InvalidArgument with everything that does not fit.
  ObjectiveCheck(const Options& options, const Pipe& pipe, const WantedData& wanted, const Data& data,
                 at::Device device);

  [[nodiscard]] const std::vector<Term>& terms() const { return terms_; }
  /// Names of targets, and along which dimension their rows are.
  [[nodiscard]] const std::vector<std::pair<std::string, std::int64_t>>& target_rows() const { return target_rows_; }

 private:
  void add(const LossTerm& text);
  void find_output(Term& term);
  [[nodiscard]] std::optional<std::size_t> usual_output(Criterion criterion) const;
  [[nodiscard]] std::string output_names() const;
  [[nodiscard]] const graph::TensorType* output_type(const Term& term) const;
  void check_program(Term& term);
  void check_program_output(const Term& term);
  void check_classes(Term& term, const graph::TensorType& output, const TensorSpec& targets);
  void check_elements(const Term& term, const graph::TensorType& output, const TensorSpec& targets);
  void set_rows(const Term& term, std::int64_t along);
  [[nodiscard]] std::int64_t rows_in(const graph::TensorType& output) const;
  void refuse(const Term& term, const std::string& why);

  const Options& options_;
  const graph::Program& program_;
  const WantedData& wanted_;
  const Data& data_;
  at::Device device_;
  std::vector<graph::Port> ports_;
  std::vector<Term> terms_;
  std::vector<std::pair<std::string, std::int64_t>> target_rows_;
  Faults faults_;
};

}  // namespace stagecraft::train
