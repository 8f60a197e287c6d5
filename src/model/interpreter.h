#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "compile.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/stage/value.h"

namespace stagecraft {

/// Runs one stage of an exported program, operator by operator, under autograd. One thread at a time.
class Interpreter {
 public:
  /// Throws InvalidArgument like `compile_stage`.
  Interpreter(std::shared_ptr<const graph::Program> program, graph::StageGraph stage, const LoadedTensors& loaded,
              at::Device device, bool is_last);

  /// `received`: values in the order of StageGraph::receives. Returns those of StageGraph::sends, or on the last stage
  /// the program's outputs.
  ValueList run(const ValueList& received);

  /// Changes when a buffer does that constants are computed from.
  [[nodiscard]] std::uint64_t version() const;

  /// In evaluation, dropout does nothing, and running statistics are used but not updated.
  void set_evaluation(bool evaluation) { evaluation_ = evaluation; }

 private:
  using Frame = std::vector<c10::IValue>;

  /// Where instructions run: in the stage, or in a body.
  struct Surrounding {
    int context = 0;                                    ///< Whose modes are set already.
    std::optional<std::uint64_t> layer = std::nullopt;  ///< Which random numbers a body draws; none outside bodies.
  };

  void make_constants();
  [[nodiscard]] bool sources_changed() const;
  void execute(const std::vector<ModelInstruction>& instructions, Frame& frame, const Surrounding& where) const;
  void call(const ModelInstruction& instruction, Frame& frame, std::vector<c10::IValue>& stack,
            std::int64_t layer) const;
  /// Replaces the arguments on the stack by the results.
  void run_control_flow(const ModelInstruction& instruction, Frame& frame, Frame& stack, std::int64_t layer) const;
  [[nodiscard]] Frame run_body(const CompiledBody& body, const Frame& arguments, std::size_t first, Frame& frame,
                               const Surrounding& where) const;
  [[nodiscard]] Frame run_loop(const ModelInstruction& instruction, Frame& frame, Frame carried,
                               std::int64_t layer) const;
  [[nodiscard]] Frame run_scan(const ModelInstruction& instruction, Frame& frame, Frame arguments,
                               std::int64_t layer) const;
  [[nodiscard]] std::string describe(const ModelInstruction& instruction) const;
  [[nodiscard]] Value result(const graph::Argument& output, const Frame& frame) const;

  std::shared_ptr<const graph::Program> program_;
  graph::StageGraph stage_;
  bool is_last_;
  at::DeviceType device_;
  std::vector<at::Tensor> loaded_;  // by value
  Compiled compiled_;
  std::vector<bool> copied_;  // by argument
  std::atomic<bool> evaluation_ = false;

  struct Seen {
    const void* data;
    std::int64_t version;
    bool operator==(const Seen&) const = default;
  };
  [[nodiscard]] static Seen look_at(const at::Tensor& source);
  std::vector<c10::IValue> constants_;  // by Compiled::kept
  std::vector<Seen> seen_;              // by Compiled::sources, when the constants were made
  bool have_constants_ = false;
};

}  // namespace stagecraft
