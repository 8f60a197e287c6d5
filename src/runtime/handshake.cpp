#include "handshake.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>

#include "compute_types.h"
#include "stagecraft/core/identity.h"
#include "stagecraft/core/name_pattern.h"
#include "stagecraft/core/text.h"

// A statement has lines of "topic<tab>value". "takes 3", "gives 2" and "parameters of stage 2" are about one stage, and
// must agree on all ranks that have it; "model" and "tied parameter x" must agree on all ranks that give them; all
// other topics must agree on all ranks.

namespace stagecraft {
namespace {

/// Fingerprint of every action of every rank, in order.
std::string actions_fingerprint(const Schedule& schedule) {
  Fingerprint fingerprint;
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        fingerprint.add(static_cast<std::uint64_t>(part.kind()));
        fingerprint.add(static_cast<std::uint64_t>(part.stage().value));
        fingerprint.add(static_cast<std::uint64_t>(part.microbatch().value));
      });
    }
    fingerprint.add(~std::uint64_t{0});
  }
  return fingerprint.text();
}

/// Parameters and buffers.
std::string summary_of(const Stage& stage) {
  NamedTensors all = stage.parameters();
  all.insert(all.end(), stage.buffers().begin(), stage.buffers().end());
  return std::to_string(stage.parameters().size()) + " parameters, " + std::to_string(stage.buffers().size()) +
         " buffers, " + fingerprint_of(all);
}

std::string text_of(const Split& split) {
  const auto along = [](const Split::Dimension& dimension) {
    return dimension ? "along " + std::to_string(*dimension) : std::string("whole");
  };
  std::ostringstream text;
  text << along(split.dimension);
  for (const Split::Dimension& own : split.dimensions) text << ", " << along(own);
  for (const std::int64_t size : split.sizes) text << ' ' << size;
  return text.str();
}

std::string text_of(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) text += (text.empty() ? "" : ", ") + spec.text();
  return text;
}

constexpr const char* kAuxiliaryLoss = "auxiliary_loss";
constexpr const char* kLossTopic = "loss of stage ";
constexpr const char* kGiven = "given";
constexpr const char* kFits = "fits: ";
constexpr const char* kFitsNot = "fits not: ";

using Topics = std::map<std::string, std::string>;

Topics parse(const std::string& statement) {
  Topics topics;
  std::istringstream in(statement);
  for (std::string line; std::getline(in, line);) {
    const auto tab = line.find('\t');
    if (tab != std::string::npos) topics[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return topics;
}

/// The value that most ranks have; among equally frequent ones, that of the lowest rank.
std::string usual_value(const std::vector<Topics>& all, const std::string& topic) {
  std::map<std::string, int> votes;
  for (const Topics& topics : all) {
    if (const auto found = topics.find(topic); found != topics.end()) ++votes[found->second];
  }
  std::string usual;
  int most = 0;
  for (const Topics& topics : all) {
    const auto found = topics.find(topic);
    if (found == topics.end() || votes[found->second] <= most) continue;
    most = votes[found->second];
    usual = found->second;
  }
  return usual;
}

/// States the patterns that fit a parameter of this rank.
void state_fits(std::ostream& text, const char* option, const std::vector<std::string>& patterns,
                const std::vector<Stage>& stages) {
  for (const std::string& pattern : patterns) {
    const auto fits = [&](const auto& parameter) { return fits_pattern(pattern, parameter.first); };
    const bool fits_here = std::any_of(stages.begin(), stages.end(), [&](const Stage& stage) {
      return std::any_of(stage.parameters().begin(), stage.parameters().end(), fits);
    });
    text << (fits_here ? kFits : kFitsNot) << option << " '" << pattern << "'\t\n";
  }
}

/// Whether some ranks may leave the topic out.
bool is_of_some_ranks(const std::string& topic) {
  return topic == "model" || topic.starts_with(kFits) || topic.starts_with(kFitsNot) ||
         topic.starts_with("tied parameter ") || topic.starts_with("takes ") || topic.starts_with("gives ") ||
         topic.find(" of stage ") != std::string::npos;
}

}  // namespace

std::string statement_of(const std::vector<Stage>& stages, const PipelineOptions& options, const Schedule& schedule) {
  std::ostringstream text;
  text << "version of Stagecraft\t" << version() << '\n';
  text << "schedule\t" << (schedule.name.empty() ? "one of its own" : schedule.name) << " (" << schedule.ranks()
       << " ranks, " << schedule.stages() << " stages, " << schedule.microbatches << " microbatches, "
       << actions_fingerprint(schedule) << ")\n";
  text << "choice of schedule\t";
  if (options.schedule.is_auto()) {
    const AutoOptions& automatic = options.automatic;
    text << "automatic, profile_steps " << automatic.profile_steps << ", memory_limit " << automatic.memory_limit
         << ", time_budget " << automatic.time_budget << ", seed " << automatic.seed;
  } else {
    text << "fixed";
  }
  text << '\n';
  text << "graphs\t" << (options.graph.is_auto() ? "auto" : options.graph.is_on() ? "on" : "off") << '\n';
  text << "edges\t";
  for (const Edge& edge : options.edges) {
    text << edge.from.value << '.' << edge.output << "->" << edge.to.value << '.' << edge.argument
         << (edge.gradient ? " " : "! ");
  }
  text << '\n';
  text << "ties\t";
  for (const Tie& tie : options.ties) {
    text << tie.parameter << " in stages";
    for (const StageId stage : tie.stages) text << ' ' << stage.value;
    text << "; ";
  }
  text << '\n';
  text << "loss_scale\t" << (options.loss_scale == LossScale::kMean ? "mean" : "sum") << '\n';
  text << "loss_weight\t" << (options.loss_weight ? "given" : "none") << '\n';
  text << "seed\t" << options.seed << '\n';
  text << "argument_splits\t";
  for (const Split& split : options.argument_splits) text << text_of(split) << "; ";
  text << '\n';
  text << "keyword_splits\t";
  for (const auto& [name, split] : options.keyword_splits) text << name << ' ' << text_of(split) << "; ";
  text << '\n';
  text << "target_split\t" << text_of(options.target_split) << '\n';
  text << "broadcast_loss\t" << (options.broadcast_loss ? "on" : "off") << '\n';
  text << "bucket_bytes\t" << options.bucket_bytes << '\n';
  constexpr std::array kShards = {"none", "optimizer", "gradients", "parameters"};
  text << "shard\t" << kShards.at(static_cast<std::size_t>(options.shard)) << '\n';
  text << "accumulate\t" << options.accumulate << '\n';
  text << "precision\t" << text_of(options.precision) << '\n';
  text << "freeze\t";
  for (const std::string& pattern : options.freeze) text << pattern << "; ";
  text << '\n';
  state_fits(text, "freeze", options.freeze, stages);
  state_fits(text, "precision.keep", options.precision.keep, stages);
  for (const Stage& stage : stages) {
    const StageOptions& own = stage.options();
    text << "parameters of stage " << stage.index().value << '\t' << summary_of(stage) << '\n';
    text << "options of stage " << stage.index().value << '\t' << (own.full_backward ? "full_backward " : "")
         << (own.copy_inputs ? "copy_inputs " : "") << (own.deferred_weights ? "deferred_weights " : "")
         << (own.auxiliary_loss ? kAuxiliaryLoss : "") << '\n';
    if (stage.index().value + 1 == schedule.stages()) {
      text << kLossTopic << stage.index().value << '\t' << (options.loss ? kGiven : "none") << '\n';
    }
    if (!own.origin.empty()) text << "model\t" << own.origin << '\n';
    for (const auto& [name, parameter] : stage.parameters()) {
      const bool is_tied = std::any_of(options.ties.begin(), options.ties.end(),
                                       [&tied = name](const Tie& tie) { return tie.parameter == tied; });
      if (!is_tied) continue;
      text << "tied parameter " << name << '\t' << TensorSpec::of(parameter).text()
           << (parameter.requires_grad() ? "" : ", frozen") << '\n';
    }
  }
  if (!options.edges.empty()) return text.str();  // with edges, a stage need not take what the one before gives
  for (const Stage& stage : stages) {
    const int index = stage.index().value;
    if (index > 0 && !stage.options().inputs.empty()) {
      text << "takes " << index << '\t' << text_of(stage.options().inputs) << '\n';
    }
    if (!stage.options().outputs.empty()) text << "gives " << index << '\t' << text_of(stage.options().outputs) << '\n';
  }
  return text.str();
}

std::string disagreement(const std::vector<std::string>& statements) {
  std::vector<Topics> all;
  Topics every;  // a value of each topic
  std::map<std::string, int> speaker;
  for (const std::string& statement : statements) {
    const int rank = static_cast<int>(all.size());
    for (const auto& [topic, value] : all.emplace_back(parse(statement))) {
      every[topic] = value;
      speaker[topic] = rank;
    }
  }
  std::string text;
  const auto add = [&](const std::string& sentence) { text += (text.empty() ? "" : "; ") + sentence; };
  for (const auto& [topic, value] : every) {
    const std::string usual = usual_value(all, topic);
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (is_of_some_ranks(topic) && !all[r].contains(topic)) continue;
      if (all[r][topic] == usual) continue;
      add("rank " + std::to_string(r) + " has " + topic + " '" + all[r][topic] + "', the others have '" + usual + "'");
    }
  }
  for (const auto& [topic, taken] : every) {
    if (!topic.starts_with("takes ")) continue;
    const int stage = std::stoi(topic.substr(6));
    const auto given = every.find("gives " + std::to_string(stage - 1));
    if (given == every.end() || given->second == taken) continue;
    if (taken.find("any") != std::string::npos || given->second.find("any") != std::string::npos) continue;
    add("stage " + std::to_string(stage - 1) + " on rank " + std::to_string(speaker[given->first]) + " gives " +
        given->second + ", but stage " + std::to_string(stage) + " on rank " + std::to_string(speaker[topic]) +
        " takes " + taken);
  }
  if (text.empty()) return text;
  return "the ranks were given different pipelines: " + text + ": every rank must make it from the same options";
}

std::string useless_patterns(const std::vector<std::string>& statements) {
  std::set<std::string> useless;
  std::set<std::string> useful;
  for (const std::string& statement : statements) {
    for (const auto& [topic, value] : parse(statement)) {
      if (topic.starts_with(kFits)) useful.insert(topic.substr(std::string_view(kFits).size()));
      if (topic.starts_with(kFitsNot)) useless.insert(topic.substr(std::string_view(kFitsNot).size()));
    }
  }
  Faults faults;
  for (const std::string& pattern : useless) {
    if (!useful.contains(pattern))
      faults.add(pattern + " fits no parameter of the model: see Pipeline::named_parameters");
  }
  return faults.text();
}

KnownLosses known_losses(const std::vector<std::string>& statements) {
  KnownLosses known;
  for (const std::string& statement : statements) {
    for (const auto& [topic, value] : parse(statement)) {
      known.any_auxiliary |= topic.starts_with("options of stage ") && value.ends_with(kAuxiliaryLoss);
      known.has_loss |= topic.starts_with(kLossTopic) && value == kGiven;
    }
  }
  return known;
}

}  // namespace stagecraft
