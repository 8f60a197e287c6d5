#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stagecraft/file/zip.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/program.h"
#include "stagecraft/runtime/pipeline.h"

/// Models exported from Python, trained without Python.
namespace stagecraft {

/// Where to cut the model; set at most one of the first four.
struct CutOptions {
  /// Into this many stages, balanced by estimated work.
  int stages = 0;
  /// At the beginning or the end of these modules.
  std::vector<graph::ModuleCut> at = {};
  /// Where the model itself says so: `pipe_split()`, or stage annotations.
  bool marked = false;
  /// A function that returns the indices in Program::nodes before which to cut, ascending.
  std::function<std::vector<int>(const graph::Program&)> policy = {};
  /// Which model of the file, if it has several.
  std::string model = {};
};

/// A tensor or constant of the inputs, which may be nested in one of them.
struct ModelLeaf {
  std::string name;  ///< With those that it is nested in: "extra.pair.0".
  /// None for what is no tensor.
  std::optional<TensorSpec> tensor;
  /// The dimension along which it is cut into microbatches; none if every microbatch gets all of it.
  Split::Dimension rows;
  bool fixed = false;  ///< By the export, to `value`.
  Value value = {};
};

/// An input of the model, given by position or by name.
struct ModelInput {
  std::string name;  ///< Empty: only by position.
  /// How its leaves are nested in it.
  graph::Tree tree;
  std::vector<ModelLeaf> leaves;
  /// How it is cut into microbatches: along the dynamic dimension of the batch, or not at all where it has none. If
  /// there is no dynamic size: along dimension 0 where that is the one of the first input.
  Split split = {};
};

/// Builds the value with the structure of the tree from its leaves.
Value nested(const graph::Tree& tree, const ValueList& leaves);

/// An exported model, cut into stages. The file is read when stages are built: keep it until then. It is never changed.
class Pipe {
 public:
  /// Reads everything but the weights. Throws FileError for a file that is not an exported program, and InvalidArgument
  /// for cuts that cannot be made and for operators that LibTorch does not have, which are all listed.
  explicit Pipe(const std::string& path, const CutOptions& options = {});

  [[nodiscard]] int stages() const { return static_cast<int>(cut_.stages.size()); }
  [[nodiscard]] const graph::Program& program() const { return *program_; }
  [[nodiscard]] const graph::CutProgram& cut() const { return cut_; }
  /// In the order of the model's arguments, then its keywords.
  [[nodiscard]] std::vector<ModelInput> inputs() const;
  /// The rows that a microbatch must have; none if their number is dynamic.
  [[nodiscard]] std::optional<std::int64_t> static_rows() const;
  /// A table of the stages: operators, parameters, bytes in and out.
  [[nodiscard]] std::string summary() const;

  /// Builds one stage; reads only its weights.
  [[nodiscard]] Stage build_stage(int index, at::Device device = at::kCPU) const;
  /// Builds several stages of one rank; a parameter that they share is one tensor.
  [[nodiscard]] std::vector<Stage> build_stages(const std::vector<StageId>& indices,
                                                at::Device device = at::kCPU) const;
  /// Builds the stages that the schedule puts on this rank.
  [[nodiscard]] std::vector<Stage> build_stages(const World& world, const ScheduleChoice& schedule) const;

  /// Adds edges, ties, and how inputs are cut into microbatches to the given options.
  [[nodiscard]] PipelineOptions options(PipelineOptions options) const;

  /// Writes the exported program again, with the weights and buffers that the pipeline has now: `torch.export.load`
  /// opens it, and so does Pipe. All ranks call it, with a pipeline of this model, cut in any way. What no stage holds
  /// stays as it was. Weights of another floating-point type are converted to that of the file. The file appears
  /// complete or not at all, and may be the one that the program came from. Throws like `save_checkpoint`.
  void save(const std::string& path, const Pipeline& pipeline) const;

 private:
  std::shared_ptr<const ZipArchive> archive_;
  std::shared_ptr<const graph::Program> program_;
  std::vector<int> places_;
  graph::CutProgram cut_;
};

/// See MakesStages: this rank's stages, and the options completed as by `Pipe::options`.
std::vector<Stage> stages_of(const Pipe& pipe, World& world, PipelineOptions& options);

}  // namespace stagecraft
