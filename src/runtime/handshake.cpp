#include "handshake.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>

#include "stagecraft/core/version.h"

// A statement is lines of "topic<tab>value"; "takes 3", "gives 2" and "parameters of stage 2" are about one stage, and
// the same on all ranks that have it; all other topics are the same on all ranks.

namespace stagecraft {
namespace {

class Hash {  // FNV-1a
 public:
  void add(std::uint64_t value) { hash_ = (hash_ ^ value) * 1099511628211U; }
  void add(const std::string& text) {
    for (const char letter : text) add(static_cast<std::uint64_t>(letter));
    add(~0U);
  }
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << std::hex << hash_;
    return out.str();
  }

 private:
  std::uint64_t hash_ = 14695981039346656037U;
};

std::string hash_of(const Schedule& schedule) {
  Hash hash;
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      for_each_part(action, [&](const Action& part) {
        hash.add(static_cast<std::uint64_t>(part.kind()));
        hash.add(static_cast<std::uint64_t>(part.stage().value));
        hash.add(static_cast<std::uint64_t>(part.microbatch().value));
      });
    }
    hash.add(~0U);
  }
  return hash.text();
}

/// Names, types, shapes and whether they are trained, of parameters and buffers.
std::string summary_of(const Stage& stage) {
  Hash hash;
  std::int64_t numbers = 0;
  for (const NamedTensors* tensors : {&stage.parameters(), &stage.buffers()}) {
    for (const auto& [name, tensor] : *tensors) {
      hash.add(name);
      if (!tensor.defined()) continue;
      hash.add(TensorSpec::of(tensor).text());
      hash.add(tensor.requires_grad() ? 1U : 0U);
      numbers += tensor.numel();
    }
  }
  return std::to_string(stage.parameters().size()) + " parameters, " + std::to_string(stage.buffers().size()) +
         " buffers, " + std::to_string(numbers) + " numbers, hash " + hash.text();
}

std::string text_of(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) text += (text.empty() ? "" : ", ") + spec.text();
  return text;
}

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

/// The value that most ranks have, of equals that of the lowest rank.
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

bool is_of_one_stage(const std::string& topic) {
  return topic.starts_with("takes ") || topic.starts_with("gives ") || topic.starts_with("parameters of stage ");
}

}  // namespace

std::string statement_of(const std::vector<Stage>& stages, const PipelineOptions& options, const Schedule& schedule) {
  std::ostringstream text;
  text << "version of Stagecraft\t" << version() << '\n';
  text << "schedule\t" << (schedule.name.empty() ? "one of its own" : schedule.name) << " (" << schedule.ranks()
       << " ranks, " << schedule.stages() << " stages, " << schedule.microbatches << " microbatches, hash "
       << hash_of(schedule) << ")\n";
  text << "choice of schedule\t";
  if (!options.plan && is_auto(options.schedule)) {
    const AutoOptions& automatic = options.automatic;
    text << "automatic, profile_steps " << automatic.profile_steps << ", memory_limit " << automatic.memory_limit;
  } else {
    text << "fixed";
  }
  text << '\n';
  text << "edges\t";
  for (const Edge& edge : options.edges) {
    text << edge.from << '.' << edge.output << "->" << edge.to << '.' << edge.argument << (edge.gradient ? " " : "! ");
  }
  text << '\n';
  text << "broadcast_loss\t" << (options.broadcast_loss ? "on" : "off") << '\n';
  text << "bucket_bytes\t" << options.bucket_bytes << '\n';
  for (const Stage& stage : stages) {
    text << "parameters of stage " << stage.index().value << '\t' << summary_of(stage) << '\n';
  }
  if (!options.edges.empty()) return text.str();  // what a stage takes is then not what the one before gives
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
  Topics every;  // rank and value by topic of one stage
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
      if (is_of_one_stage(topic) && !all[r].contains(topic)) continue;
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
  return "the ranks do not mean the same pipeline: " + text + ": every rank must make it from the same options";
}

}  // namespace stagecraft
