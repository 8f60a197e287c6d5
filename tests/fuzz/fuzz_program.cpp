// Any bytes as a model file: read or refused with an Error, and what was read can be cut, reported and balanced.
//
// Input: one byte that chooses, then either a whole archive or the graph in JSON, for which the rest of the archive is
// given. Checksums are not checked, so that changed bytes of a real archive reach the parsers behind.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "../property/dice.h"
#include "../support/zip_bytes.h"
#include "json_mutation.h"
#include "refusing.h"
#include "stagecraft/core/error.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/report.h"

namespace {

using namespace stagecraft;

/// The weights of the models in the corpus, which the JSON of another may want too.
constexpr std::string_view kWeights =
    R"({"config": {"a.weight": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta":
    {"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 2}], "strides": [{"as_int": 2}, {"as_int": 1}],
    "storage_offset": {"as_int": 0}, "requires_grad": true, "layout": 7}},
    "b.weight": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta":
    {"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 2}], "strides": [{"as_int": 2}, {"as_int": 1}],
    "storage_offset": {"as_int": 4}, "requires_grad": true, "layout": 7}},
    "count": {"path_name": "weight_1", "is_param": false, "use_pickle": false, "tensor_meta":
    {"dtype": 7, "sizes": [{"as_int": 2}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0},
    "requires_grad": false, "layout": 7}}}})";

std::string archive_around(std::string_view graph) {
  return ZipBytes()
      .add({"m/archive_format", "pt2"})
      .add({"m/models/model.json", std::string(graph)})
      .add({"m/data/weights/model_weights_config.json", std::string(kWeights)})
      .add({"m/data/weights/weight_0", std::string(32, '\0')})
      .add({"m/data/weights/weight_1", std::string(8, '\0')})
      .finish();
}

/// Every value that a stage uses is received, loaded, taken from a tensor's size or computed.
void require_complete(const graph::Program& program, const graph::CutProgram& cut) {
  for (std::size_t s = 0; s < cut.stages.size(); ++s) {
    const graph::StageGraph& stage = cut.stages[s];
    std::vector<bool> there(program.values.size(), false);
    const auto give = [&](graph::ValueId value) { there[static_cast<std::size_t>(value)] = true; };
    for (const graph::ValueId value : stage.receives) give(value);
    for (const int input : stage.loads) give(program.inputs[static_cast<std::size_t>(input)].value);
    for (const graph::SizeOf& size : stage.sizes) give(size.number);
    for (const int index : stage.nodes) {
      const graph::Node& node = program.nodes[static_cast<std::size_t>(index)];
      for (const graph::ValueId used : node.uses()) require(there[static_cast<std::size_t>(used)]);
      for (const graph::ValueId made : node.makes()) give(made);
    }
    for (const graph::ValueId value : stage.sends) require(there[static_cast<std::size_t>(value)]);
    if (s + 1 < cut.stages.size()) continue;
    for (const graph::ValueId value : program.output_values()) require(there[static_cast<std::size_t>(value)]);
  }
  for (const graph::CutEdge& edge : cut.edges) require(edge.from < edge.to);
}

void use(const graph::Program& program) {
  const std::vector<graph::LegalCut> legal = graph::legal_module_cuts(program);
  const auto nodes = static_cast<int>(program.nodes.size());
  for (int place = 0; place <= std::min(nodes, 16); ++place) {
    graph::CutProgram cut;
    if (!accepts([&] { cut = graph::cut(program, {place}); })) continue;
    require_complete(program, cut);
    require(!graph::summary(program, cut).empty());
  }
  for (const graph::LegalCut& cut : legal) require(cut.place > 0 && cut.place < nodes && cut.bytes >= 0);
  for (const int stages : {2, 3}) {
    std::vector<int> places;
    if (accepts([&] { places = graph::balanced_places(program, stages); })) {
      require(static_cast<int>(places.size()) == stages - 1 && std::is_sorted(places.begin(), places.end()));
    }
  }
  accepts([&] { graph::marked_places(program); });
  require_complete(program, graph::cut(program, {}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::optional<graph::Program> program;
  accepts([&] {
    const std::string bytes = data[0] % 2 == 0 ? std::string(text) : archive_around(text);
    program = graph::read_program(ZipArchive(bytes_in_memory("fuzz.pt2", bytes)));
  });
  if (program) use(*program);
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

/// Changed bytes rarely form JSON. So if the input is JSON, mostly its values are changed instead.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  property::Dice dice(seed);
  if (size < 2 || data[0] % 2 == 0 || dice.chance(10)) return LLVMFuzzerMutate(data, size, most);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto root = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return LLVMFuzzerMutate(data, size, most);
  do {
    fuzz::JsonMutation(root, dice).apply();
  } while (dice.chance(40));
  const std::string changed = root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (changed.size() + 1 > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(changed.begin(), changed.end(), data + 1);
  return changed.size() + 1;
}
