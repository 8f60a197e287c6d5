#include "stagecraft/sim/cost_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "parse_json.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"

namespace stagecraft {
namespace {

using Json = nlohmann::ordered_json;
using json::shown;

struct StageKey {
  std::string_view name;
  double StageCosts::*field;
  bool required;
};

constexpr std::array kStageKeys = {
    StageKey{"forward", &StageCosts::forward, true},
    StageKey{"backward_input", &StageCosts::backward_input, true},
    StageKey{"backward_weight", &StageCosts::backward_weight, true},
    StageKey{"backward", &StageCosts::backward, false},
    StageKey{"optimizer", &StageCosts::optimizer, false},
    StageKey{"unshard", &StageCosts::unshard, false},
    StageKey{"reduce_grad", &StageCosts::reduce_grad, false},
    StageKey{"activation_memory", &StageCosts::activation_memory, false},
    StageKey{"weight_gradient_memory", &StageCosts::weight_gradient_memory, false},
    StageKey{"buffer_memory", &StageCosts::buffer_memory, false},
    StageKey{"forward_bytes", &StageCosts::forward_bytes, false},
    StageKey{"backward_bytes", &StageCosts::backward_bytes, false},
    StageKey{"parameter_memory", &StageCosts::parameter_memory, false},
    StageKey{"master_memory", &StageCosts::master_memory, false},
    StageKey{"gradient_memory", &StageCosts::gradient_memory, false},
    StageKey{"optimizer_memory", &StageCosts::optimizer_memory, false},
    StageKey{"unshard_memory", &StageCosts::unshard_memory, false},
    StageKey{"reduce_memory", &StageCosts::reduce_memory, false},
    StageKey{"input_memory", &StageCosts::input_memory, false},
};
constexpr std::string_view kRecompute = "recompute";  // of a stage, but true or false
constexpr std::array<std::string_view, 14> kGlobalKeys = {
    "stages",      "layers",        "latency",         "bandwidth",
    "links",       "rank_slowdown", "overlap_factor",  "overlap_communication",
    "replicas",    "shard",         "replica_latency", "replica_bandwidth",
    "memory_unit", "comment"};
constexpr std::array kShards = {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters};
constexpr std::array<std::string_view, 4> kLinkKeys = {"from", "to", "latency", "bandwidth"};

class Reader {
 public:
  CostFile read(const Json& root) {
    if (!root.is_object()) {
      complain("costs", fmt::format("got {}, expected an object such as {{\"forward\": 1.0, ...}}", shown(root)));
      finish();
    }
    refuse_unknown(root, "", [](std::string_view key) { return is_stage_key(key) || is_in(kGlobalKeys, key); });
    CostFile file;
    Costs& costs = file.costs;
    read_unit(root, costs);
    in_bytes_ = costs.memory_in_bytes;
    if (root.contains("layers")) {
      read_layers(root, file);
    } else {
      read_stages(root, costs);
    }
    if (const auto latency = number(root, "latency", "")) costs.link.latency = *latency;
    if (const auto bandwidth = positive(root, "bandwidth", "")) costs.link.bandwidth = *bandwidth;
    if (const auto factor = positive(root, "overlap_factor", "")) costs.overlap_factor = *factor;
    if (root.contains("overlap_communication")) {
      costs.overlap_communication = flag(root["overlap_communication"], "overlap_communication");
    }
    read_links(root, costs);
    read_slowdown(root, costs);
    read_replicas(root, costs);
    finish();
    return file;
  }

 private:
  static bool is_stage_key(std::string_view key) {
    return key == kRecompute ||
           std::any_of(kStageKeys.begin(), kStageKeys.end(), [&](const StageKey& k) { return k.name == key; });
  }
  template <typename Keys>
  static bool is_in(const Keys& keys, std::string_view key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }

  void complain(const std::string& key, const std::string& text) { problems_.add(key + ": " + text); }

  void finish() const {
    if (!problems_.empty()) throw InvalidArgument(problems_.text("\n"));
  }

  template <typename Known>
  void refuse_unknown(const Json& object, const std::string& prefix, Known&& known) {
    for (const auto& [key, value] : object.items()) {
      if (!known(key)) complain(prefix + key, "unknown key: 'stagecraft costs --example' shows all that are known");
    }
  }

  /// None after a complaint.
  std::optional<double> checked(const Json& value, const std::string& key) {
    return json::non_negative(value, key, problems_);
  }

  std::optional<double> number(const Json& object, const std::string& key, const std::string& prefix) {
    if (!object.contains(key)) return std::nullopt;
    return checked(object[key], prefix + key);
  }

  std::optional<double> positive(const Json& object, const std::string& key, const std::string& prefix) {
    const auto value = number(object, key, prefix);
    if (!value || *value > 0) return value;
    complain(prefix + key, fmt::format("got {}, must be above 0; leave it out where there is no limit or change",
                                       shown(object[key])));
    return std::nullopt;
  }

  /// False after a complaint.
  bool flag(const Json& value, const std::string& key) {
    if (!value.is_boolean()) complain(key, fmt::format("got {}, expected true or false", shown(value)));
    return value.is_boolean() && value.get<bool>();
  }

  /// Derives what is not given from the other costs. `object` has the keys of the stage.
  static void complete(StageCosts& stage, const Json& object) {
    if (!object.contains("backward")) stage.backward = stage.backward_input + stage.backward_weight;
    if (!object.contains("weight_gradient_memory")) stage.weight_gradient_memory = stage.activation_memory;
  }

  /// Whether a stage has memory beside its activations.
  static bool has_more(const StageCosts& stage) {
    return stage.parameter_memory > 0 || stage.master_memory > 0 || stage.gradient_memory > 0 ||
           stage.optimizer_memory > 0 || stage.input_memory > 0;
  }

  /// Complains of defaults that would be wrong beside other memory. `object` has the keys of the stages.
  void check_memory(std::span<const StageCosts> stages, const Json& object, const std::string& prefix) {
    const bool recomputes = std::any_of(stages.begin(), stages.end(), [](const StageCosts& s) { return s.recompute; });
    const bool has_unit = in_bytes_ || std::any_of(stages.begin(), stages.end(), has_more);
    if (has_unit && !object.contains("activation_memory")) {
      complain(prefix + "activation_memory",
               "is missing: all memory is in one unit, so it is not 1 beside bytes or parameters");
    }
    if (recomputes && !object.contains("input_memory")) {
      complain(prefix + "input_memory", "is missing: a stage that is computed again keeps its input");
    }
  }

  void read_stages(const Json& root, Costs& costs) {
    if (root.contains("stages")) return read_long_form(root, costs);
    std::size_t count = 1;
    std::string counted_by;
    const auto count_entries = [&](const std::string& name) {
      if (!root.contains(name) || !root[name].is_array()) return;
      const std::size_t entries = root[name].size();
      if (entries == 0) {
        complain(name, "is an empty list: give one number for all stages, or one per stage");
      } else if (counted_by.empty()) {
        count = entries;
        counted_by = name;
      } else if (entries != count) {
        complain(name, fmt::format("has {} entries, but {} has {}: lists by stage are equally long", entries,
                                   counted_by, count));
      }
    };
    for (const StageKey& key : kStageKeys) count_entries(std::string(key.name));
    count_entries(std::string(kRecompute));
    costs.stages.assign(count, StageCosts());
    for (const StageKey& key : kStageKeys) read_short_form_key(root, key, costs);
    if (root.contains(kRecompute)) read_short_form_recompute(root[std::string(kRecompute)], costs);
    for (StageCosts& stage : costs.stages) complete(stage, root);
    check_memory(costs.stages, root, "");
  }

  void read_short_form_recompute(const Json& value, Costs& costs) {
    if (!value.is_array()) {
      const bool all = flag(value, std::string(kRecompute));
      for (StageCosts& stage : costs.stages) stage.recompute = all;
      return;
    }
    for (std::size_t s = 0; s < value.size(); ++s) {
      const bool own = flag(value[s], fmt::format("{}[{}]", kRecompute, s));
      if (s < costs.stages.size()) costs.stages[s].recompute = own;
    }
  }

  void read_short_form_key(const Json& root, const StageKey& key, Costs& costs) {
    const std::string name(key.name);
    if (!root.contains(name)) {
      if (key.required) complain(name, "is missing: give a number for all stages, or a list by stage");
      return;
    }
    const Json& value = root[name];
    if (!value.is_array()) {
      const auto cost = checked(value, name);
      for (StageCosts& stage : costs.stages) stage.*key.field = cost.value_or(0);
      return;
    }
    for (std::size_t s = 0; s < value.size(); ++s) {
      const auto cost = checked(value[s], fmt::format("{}[{}]", name, s));
      if (s < costs.stages.size()) costs.stages[s].*key.field = cost.value_or(0);
    }
  }

  void read_long_form(const Json& root, Costs& costs) {
    refuse_beside(root, "stages");
    const Json& stages = root["stages"];
    if (!is_list(stages, "stages")) return;
    costs.stages.clear();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      costs.stages.push_back(stage_of(stages[s], fmt::format("stages[{}]", s), is_stage_key));
    }
  }

  void read_layers(const Json& root, CostFile& file) {
    refuse_beside(root, "layers");
    if (root.contains("stages")) complain("stages", "stands beside \"layers\": give one of them");
    const Json& layers = root["layers"];
    if (!is_list(layers, "layers")) return;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::string key = fmt::format("layers[{}]", i);
      Layer layer;
      layer.costs = stage_of(layers[i], key, [](std::string_view name) {
        return is_stage_key(name) || name == "name" || name == "repeat";
      });
      if (!layers[i].is_object()) continue;
      if (layers[i].contains("name")) {
        const Json& name = layers[i]["name"];
        if (!name.is_string()) complain(key + ".name", fmt::format("got {}, expected a text", shown(name)));
        if (name.is_string()) layer.name = name.get<std::string>();
      }
      std::uint64_t repeat = 1;
      if (layers[i].contains("repeat")) {
        const Json& count = layers[i]["repeat"];
        const bool good =
            count.is_number_unsigned() && count.get<std::uint64_t>() >= 1 && count.get<std::uint64_t>() <= 10000;
        if (!good)
          complain(key + ".repeat", fmt::format("got {}, expected a whole number from 1 to 10000", shown(count)));
        if (good) repeat = count.get<std::uint64_t>();
      }
      file.layers.insert(file.layers.end(), repeat, layer);
    }
  }

  void refuse_beside(const Json& root, const std::string& list) {
    for (const auto& [key, value] : root.items()) {
      if (is_stage_key(key)) complain(key, fmt::format("stands beside \"{}\": move it into each of them", list));
    }
  }

  bool is_list(const Json& value, const std::string& key) {
    if (value.is_array() && !value.empty()) return true;
    complain(key, fmt::format("got {}, expected a list of objects", shown(value)));
    return false;
  }

  /// Reads an object with the keys of one stage or one layer.
  template <typename Known>
  StageCosts stage_of(const Json& object, const std::string& key, Known&& known) {
    StageCosts stage;
    if (!object.is_object()) {
      complain(key, fmt::format("got {}, expected an object", shown(object)));
      return stage;
    }
    const std::string prefix = key + ".";
    refuse_unknown(object, prefix, known);
    for (const StageKey& field : kStageKeys) {
      const std::string name(field.name);
      if (const auto cost = number(object, name, prefix)) stage.*field.field = *cost;
      if (field.required && !object.contains(name)) complain(prefix + name, "is missing: give a number");
    }
    if (object.contains(kRecompute)) {
      stage.recompute = flag(object[std::string(kRecompute)], prefix + std::string(kRecompute));
    }
    complete(stage, object);
    check_memory(std::span(&stage, 1), object, prefix);
    return stage;
  }

  void read_links(const Json& root, Costs& costs) {
    if (!root.contains("links")) return;
    const Json& links = root["links"];
    if (!links.is_array()) return complain("links", fmt::format("got {}, expected a list of objects", shown(links)));
    for (std::size_t i = 0; i < links.size(); ++i) {
      const std::string prefix = fmt::format("links[{}].", i);
      if (!links[i].is_object()) {
        complain(fmt::format("links[{}]", i), fmt::format("got {}, expected an object", shown(links[i])));
        continue;
      }
      refuse_unknown(links[i], prefix, [](std::string_view key) { return is_in(kLinkKeys, key); });
      NamedLink named{.from = rank(links[i], "from", prefix), .to = rank(links[i], "to", prefix), .costs = costs.link};
      if (const auto latency = number(links[i], "latency", prefix)) named.costs.latency = *latency;
      if (const auto bandwidth = positive(links[i], "bandwidth", prefix)) named.costs.bandwidth = *bandwidth;
      costs.links.push_back(named);
    }
  }

  RankId rank(const Json& object, const std::string& key, const std::string& prefix) {
    if (!object.contains(key)) {
      complain(prefix + key, "is missing: give the number of a rank");
    } else if (!object[key].is_number_unsigned() ||
               object[key].get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxRanks)) {
      complain(prefix + key, fmt::format("got {}, expected the number of a rank, from 0", shown(object[key])));
    } else {
      return RankId(object[key].get<std::uint64_t>());
    }
    return RankId(0);
  }

  void read_slowdown(const Json& root, Costs& costs) {
    if (!root.contains("rank_slowdown")) return;
    const Json& value = root["rank_slowdown"];
    const Json list = value.is_array() ? value : Json::array({value});
    for (std::size_t r = 0; r < list.size(); ++r) {
      const std::string key = value.is_array() ? fmt::format("rank_slowdown[{}]", r) : "rank_slowdown";
      const auto factor = checked(list[r], key);
      if (factor && *factor == 0) complain(key, "got 0, must be above 0: 1 is a rank of ordinary speed");
      costs.rank_slowdown.push_back(factor.value_or(1));
    }
  }

  void read_replicas(const Json& root, Costs& costs) {
    constexpr std::uint64_t kMost = 1 << 20;
    if (root.contains("replicas")) {
      const Json& value = root["replicas"];
      const bool good =
          value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 && value.get<std::uint64_t>() <= kMost;
      if (!good) complain("replicas", fmt::format("got {}, expected a whole number from 1 to {}", shown(value), kMost));
      if (good) costs.replicas = value.get<int>();
    }
    if (root.contains("shard")) {
      const Json& value = root["shard"];
      const auto known = std::find_if(kShards.begin(), kShards.end(), [&](Shard shard) {
        return value.is_string() && value.get<std::string>() == shard_name(shard);
      });
      if (known == kShards.end()) {
        complain("shard", fmt::format("got {}, expected none, optimizer, gradients or parameters", shown(value)));
      } else {
        costs.shard = *known;
      }
    }
    if (const auto latency = number(root, "replica_latency", "")) costs.replica_link.latency = *latency;
    if (const auto bandwidth = positive(root, "replica_bandwidth", "")) costs.replica_link.bandwidth = *bandwidth;
  }

  void read_unit(const Json& root, Costs& costs) {
    if (!root.contains("memory_unit")) return;
    const Json& value = root["memory_unit"];
    costs.memory_in_bytes = value == "bytes";
    if (value != "bytes" && value != "any") {
      complain("memory_unit",
               fmt::format("got {}, expected \"bytes\", or \"any\" for a unit of your own", shown(value)));
    }
  }

  bool in_bytes_ = false;
  Faults problems_;
};

void add_stage_keys(Json& object, const StageCosts& stage) {
  for (const StageKey& key : kStageKeys) object[std::string(key.name)] = stage.*key.field;
  object[std::string(kRecompute)] = stage.recompute;
}

}  // namespace

CostFile parse_cost_file(std::string_view text) {
  return Reader().read(json::parse<Json>(text, "see 'stagecraft costs --example'"));
}

Costs parse_costs(std::string_view text) {
  CostFile file = parse_cost_file(text);
  if (file.layers.empty()) return std::move(file.costs);
  throw InvalidArgument(
      "layers: costs by stage are needed here: 'stagecraft plan' cuts layers into stages, and its "
      "--stage-costs writes their costs");
}

std::string costs_to_json(const Costs& costs) { return cost_file_to_json({costs, {}}); }

std::string cost_file_to_json(const CostFile& file) {
  const Costs& costs = file.costs;
  Json root;
  if (file.layers.empty()) {
    root["stages"] = Json::array();
    for (const StageCosts& stage : costs.stages) add_stage_keys(root["stages"].emplace_back(), stage);
  }
  for (const Layer& layer : file.layers) {
    Json& object = root["layers"].emplace_back();
    if (!layer.name.empty()) object["name"] = layer.name;
    add_stage_keys(object, layer.costs);
  }
  root["latency"] = costs.link.latency;
  if (costs.link.bandwidth > 0) root["bandwidth"] = costs.link.bandwidth;
  for (const NamedLink& named : costs.links) {
    Json& object = root["links"].emplace_back();
    object = {{"from", named.from.value}, {"to", named.to.value}, {"latency", named.costs.latency}};
    if (named.costs.bandwidth > 0) object["bandwidth"] = named.costs.bandwidth;
  }
  if (!costs.rank_slowdown.empty()) root["rank_slowdown"] = costs.rank_slowdown;
  root["overlap_factor"] = costs.overlap_factor;
  root["overlap_communication"] = costs.overlap_communication;
  root["replicas"] = costs.replicas;
  root["shard"] = shard_name(costs.shard);
  root["replica_latency"] = costs.replica_link.latency;
  if (costs.replica_link.bandwidth > 0) root["replica_bandwidth"] = costs.replica_link.bandwidth;
  root["memory_unit"] = costs.memory_in_bytes ? "bytes" : "any";
  return root.dump(2) + "\n";
}

}  // namespace stagecraft
