#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "readers.h"
#include "stagecraft/graph/program.h"

namespace stagecraft::graph {
namespace {

constexpr std::int64_t kSchemaMajor = 8;

/// Reads one model of an archive.
class ProgramReader {
 public:
  ProgramReader(const ZipArchive& archive, const std::string& model)
      : archive_(archive), graph_reader_(program_, faults_) {
    find_root();
    find_model(model);
  }

  Program read() {
    program_.contexts.emplace_back();
    program_.modules.emplace_back();
    const nlohmann::json text = parse(root_ + "models/" + model_ + ".json");
    const Cursor top(text, model_ + ".json");
    check_version(top);
    try {
      read_all(top);
    } catch (const InvalidArgument& error) {
      // Faults found before may be the cause.
      if (!faults_.empty()) refuse(faults_.text());
      throw;
    }
    if (!faults_.empty()) refuse(faults_.text());
    join_shared_parameters();
    return std::move(program_);
  }

 private:
  void read_all(const Cursor& top) {
    const Cursor graph_module = top["graph_module"];
    graph_reader_.declare_inputs(graph_module["graph"], scope_);
    read_inputs(graph_module["signature"]["input_specs"]);
    graph_reader_.read_nodes(graph_module["graph"], scope_);
    read_outputs(graph_module["signature"]["output_specs"]);
    read_trees(graph_module["module_call_graph"]);
    read_ranges(top);
  }

  [[noreturn]] void refuse(const std::string& why) const { throw FileError(archive_.name(), why); }

  void find_root() {
    constexpr std::string_view kFormat = "archive_format";
    for (const std::string& record : archive_.records()) {
      if (!record.ends_with(kFormat)) continue;
      root_ = record.substr(0, record.size() - kFormat.size());
      if (!root_.empty() && root_.back() != '/') continue;
      if (archive_.read_text(record, 16) != "pt2") {
        refuse("its archive_format is not pt2: save the model with torch.export.save");
      }
      if (archive_.contains(root_ + "byteorder") && archive_.read_text(root_ + "byteorder", 16) != "little") {
        refuse("its weights are not little-endian, which is not supported: export again on such a machine");
      }
      return;
    }
    if (archive_.contains("serialized_exported_program.json")) {
      refuse("it was written by a torch older than 2.9: export again with a newer torch");
    }
    refuse("it has no archive_format, so it is no exported program: save the model with torch.export.save");
  }

  void find_model(const std::string& wanted) {
    std::vector<std::string> names;
    const std::string folder = root_ + "models/";
    for (const std::string& record : archive_.records()) {
      if (record.starts_with(folder) && record.ends_with(".json")) {
        names.push_back(record.substr(folder.size(), record.size() - folder.size() - std::string_view(".json").size()));
      }
    }
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "'" : "', '") + name;
    list += names.empty() ? "none" : "'";
    if (!wanted.empty()) {
      if (std::find(names.begin(), names.end(), wanted) == names.end())
        refuse("it has no model '" + wanted + "', only " + list);
      model_ = wanted;
    } else {
      if (names.empty()) refuse("it holds no model: save one with torch.export.save");
      if (names.size() > 1) refuse("it holds the models " + list + ": name the one to take");
      model_ = names.front();
    }
  }

  [[nodiscard]] nlohmann::json parse(const std::string& record) const {
    try {
      return parsed_record(archive_, record);
    } catch (const InvalidArgument& error) {
      refuse(error.what());
    }
  }

  void check_version(const Cursor& top) {
    program_.torch_version = top.has("torch_version") ? top["torch_version"].text() : "";
    const std::int64_t major = top["schema_version"]["major"].integer();
    const std::string& version = program_.torch_version;
    const std::size_t dot = version.find('.');
    const int torch_major = std::atoi(version.c_str());
    const int torch_minor = dot == std::string::npos ? 0 : std::atoi(version.c_str() + dot + 1);
    if (major < kSchemaMajor || std::tie(torch_major, torch_minor) < std::make_tuple(2, 9)) {
      refuse("it was written by torch " + (version.empty() ? std::string("of an unknown version") : version) +
             " (schema " + std::to_string(major) + "), older than 2.9: export again with a newer torch");
    }
    if (major > kSchemaMajor) {
      refuse("it has schema version " + std::to_string(major) + ", and only " + std::to_string(kSchemaMajor) +
             " is known: export with torch 2.13, or use a newer Stagecraft");
    }
  }

  void read_inputs(const Cursor& specs) {
    const StoredTensors weights =
        read_stored(archive_, root_ + "data/weights/", model_ + "_weights_config.json", faults_);
    const StoredTensors constants =
        read_stored(archive_, root_ + "data/constants/", model_ + "_constants_config.json", faults_);
    std::vector<bool> given(program_.values.size(), false);
    specs.each([&](const Cursor& cursor) {
      const auto [kind, spec] = cursor.alternative();
      Input input;
      if (kind == "user_input") {
        read_user_input(spec["arg"], input);
      } else if (kind == "constant_input") {
        input.kind = Input::Kind::kFixed;
        input.name = spec["name"].text();
        input.fixed = graph_reader_.argument(spec["value"], scope_);
      } else if (kind == "parameter" || kind == "buffer" || kind == "tensor_constant") {
        input.kind = kind == "parameter" ? Input::Kind::kParameter
                     : kind == "buffer"  ? Input::Kind::kBuffer
                                         : Input::Kind::kConstant;
        input.name = spec[(kind + "_name").c_str()].text();
        if (kind == "buffer") input.persistent = spec["persistent"].flag();
        input.value = value_of(spec["arg"]["name"]);
        find_stored(input, weights, constants);
      } else {
        faults_.add(cursor.path() + ": an input of the kind " + kind + " is not supported");
      }
      if (input.value != kNoValue) {
        if (given[static_cast<std::size_t>(input.value)]) cursor.refuse("gives the same value as another input");
        given[static_cast<std::size_t>(input.value)] = true;
      }
      program_.inputs.push_back(std::move(input));
    });
    const auto missing = std::find(given.begin(), given.end(), false) - given.begin();
    if (missing < static_cast<std::ptrdiff_t>(given.size()) && faults_.empty()) {
      specs.refuse("does not say what the graph's input '" + program_.values[static_cast<std::size_t>(missing)].name +
                   "' is");
    }
  }

  void read_user_input(const Cursor& argument, Input& input) {
    const auto [kind, value] = argument.alternative();
    if (kind == "as_tensor") {
      input.name = value["name"].text();
      input.value = value_of(value["name"]);
    } else if (kind == "as_sym_int" && value.has("as_name")) {
      input.name = value["as_name"].text();
      input.value = value_of(value["as_name"]);
    } else {
      input.kind = Input::Kind::kFixed;
      input.fixed = graph_reader_.argument(argument, scope_);
    }
  }

  [[nodiscard]] ValueId value_of(const Cursor& name) const {
    const auto found = scope_.find(name.text());
    if (found == scope_.end()) name.refuse("is '" + name.text() + "', which nothing makes");
    return found->second;
  }

  void find_stored(Input& input, const StoredTensors& weights, const StoredTensors& constants) {
    for (const StoredTensors* folder : {&weights, &constants}) {
      if (folder->refused.contains(input.name)) return;
      if (const auto found = folder->tensors.find(input.name); found != folder->tensors.end()) {
        input.stored = found->second;
        check_type(input);
        return;
      }
    }
    faults_.add("the weight '" + input.name + "' is missing: save the model again");
  }

  /// Adds a fault if the stored weight does not have the type that the graph declares.
  void check_type(const Input& input) {
    const TensorType& expected = program_.values[static_cast<std::size_t>(input.value)].tensor;
    std::vector<Size> sizes;
    for (const std::int64_t size : input.stored.sizes) sizes.push_back({size, {}});
    if (expected.element == input.stored.element && expected.sizes == sizes) return;
    faults_.add("the weight '" + input.name + "' is " + std::string(text(input.stored.element)) + " " + text(sizes) +
                ", but the graph wants " + std::string(text(expected.element)) + " " + text(expected.sizes));
  }

  void read_outputs(const Cursor& specs) {
    specs.each([&](const Cursor& cursor) {
      const auto [kind, spec] = cursor.alternative();
      if (kind == "user_output") {
        program_.outputs.push_back(graph_reader_.argument(spec["arg"], scope_));
      } else if (kind == "loss_output") {
        program_.outputs.emplace_back(Use{value_of(spec["arg"]["name"])});
      } else if (kind == "buffer_mutation") {
        read_update(spec);
      } else {
        faults_.add(cursor.path() + ": an output of the kind " + kind + " is not supported");
      }
    });
  }

  void read_update(const Cursor& spec) {
    const std::string name = spec["buffer_name"].text();
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i].kind == Input::Kind::kBuffer && program_.inputs[i].name == name) {
        program_.updates.push_back({static_cast<int>(i), value_of(spec["arg"]["name"])});
        return;
      }
    }
    faults_.add("the buffer '" + name + "' is changed, but is no input");
  }

  void read_trees(const Cursor& calls) {
    bool found = false;
    calls.each([&](const Cursor& call) {
      if (!call["fqn"].text().empty() || !call.has("signature")) return;
      found = true;
      const Cursor signature = call["signature"];
      const Tree in = tree(signature["in_spec"]);
      if (in.children.size() != 2 || in.children[1].kind == Tree::Kind::kLeaf ||
          in.children[0].kind != Tree::Kind::kList) {
        signature["in_spec"].refuse("is not a pair of arguments and keywords");
      }
      program_.arguments = in.children[0];
      program_.keywords = in.children[1];
      if (program_.keywords.children.empty()) program_.keywords.kind = Tree::Kind::kDict;
      program_.result = tree(signature["out_spec"]);
      if (signature.has("forward_arg_names")) {
        signature["forward_arg_names"].each(
            [&](const Cursor& name) { program_.argument_names.push_back(name.text()); });
      }
    });
    if (!found) calls.refuse("does not say how the model is called");
    const auto leaves = static_cast<int>(std::count_if(program_.inputs.begin(), program_.inputs.end(),
                                                       [](const Input& input) { return !input.is_loaded(); }));
    if (program_.arguments.leaves() + program_.keywords.leaves() != leaves) {
      calls.refuse("names " + std::to_string(program_.arguments.leaves() + program_.keywords.leaves()) +
                   " inputs, but the graph has " + std::to_string(leaves));
    }
    if (program_.result.leaves() != static_cast<int>(program_.outputs.size())) {
      calls.refuse("names " + std::to_string(program_.result.leaves()) + " outputs, but the graph has " +
                   std::to_string(program_.outputs.size()));
    }
  }

  static Tree tree(const Cursor& cursor) {
    try {
      return parse_tree(cursor.text());
    } catch (const InvalidArgument& error) {
      cursor.refuse(std::string("cannot be read: ") + error.what());
    }
  }

  void read_ranges(const Cursor& top) {
    if (!top.has("range_constraints")) return;
    top["range_constraints"].each_entry([&](const std::string& symbol, const Cursor& range) {
      Range& own = program_.ranges[symbol];
      if (range.has("min_val")) own.least = range["min_val"].integer();
      if (range.has("max_val")) own.most = range["max_val"].integer();
    });
  }

  /// Merges parameters that are names of the same weight: uses of the later names become uses of the first.
  void join_shared_parameters() {
    std::map<ValueId, ValueId> stands_for;
    std::vector<Input> kept;
    using Place = std::tuple<std::string, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>;
    std::map<Place, std::size_t> first;
    for (const Input& input : program_.inputs) {
      const bool is_weight = input.kind == Input::Kind::kParameter && input.stored.elements() > 0;
      const StoredTensor& stored = input.stored;
      if (is_weight) {
        const auto [same, added] =
            first.try_emplace({stored.record, stored.offset, stored.sizes, stored.strides}, kept.size());
        if (!added && kept[same->second].stored == stored) {
          kept[same->second].other_names.push_back(input.name);
          stands_for[input.value] = kept[same->second].value;
          continue;
        }
      }
      kept.push_back(input);
    }
    if (stands_for.empty()) return;
    // Updates refer to inputs by index, which has changed.
    std::map<ValueId, int> places;
    for (std::size_t i = 0; i < kept.size(); ++i) places[kept[i].value] = static_cast<int>(i);
    for (Update& update : program_.updates) {
      update.input = places.at(program_.inputs[static_cast<std::size_t>(update.input)].value);
    }
    program_.inputs = std::move(kept);
    const auto redirect = [&](Use& use) {
      if (const auto found = stands_for.find(use.value); found != stands_for.end()) use.value = found->second;
    };
    const auto redirect_argument = [&](Argument& argument) {
      if (auto* use = std::get_if<Use>(&argument)) redirect(*use);
      if (auto* uses = std::get_if<Uses>(&argument)) {
        for (Use& use : *uses) redirect(use);
      }
    };
    for_each_argument(program_.nodes, redirect_argument);
    for (Argument& output : program_.outputs) redirect_argument(output);
  }

  template <typename Change>
  static void for_each_argument(std::vector<Node>& nodes, const Change& change) {
    for (Node& node : nodes) {
      for (NamedArgument& given : node.arguments) change(given.value);
      for (Body& body : node.bodies) {
        for_each_argument(body.nodes, change);
        for (Argument& output : body.outputs) change(output);
      }
    }
  }

  const ZipArchive& archive_;
  std::string root_;
  std::string model_;
  Program program_;
  Faults faults_;
  GraphReader graph_reader_;
  GraphReader::Scope scope_;
};

}  // namespace

Program read_program(const ZipArchive& archive, const std::string& model) {
  try {
    return ProgramReader(archive, model).read();
  } catch (const InvalidArgument& error) {
    throw FileError(archive.name(), std::string("not an exported program that can be read: ") + error.what());
  }
}

}  // namespace stagecraft::graph
