#include "stagecraft/runtime/wiring.h"

#include <algorithm>
#include <string>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

std::string text(const Edge& edge) {
  return "edge from stage " + std::to_string(edge.from.value) + ", output " + std::to_string(edge.output) +
         ", to stage " + std::to_string(edge.to.value) + ", argument " + std::to_string(edge.argument);
}

void check(const Edge& edge, int stages) {
  if (edge.from.value < 0 || edge.to.value >= stages || edge.from >= edge.to) {
    throw InvalidArgument(text(edge) + ": an edge goes from a stage to a later one, and there are stages 0 to " +
                          std::to_string(stages - 1));
  }
  if (edge.output < 0 || edge.argument < 0) {
    throw InvalidArgument(text(edge) + ": outputs and arguments are counted from 0");
  }
}

int index_of(const std::vector<Wiring::Item>& items, const Wiring::Item& item) {
  return static_cast<int>(std::find(items.begin(), items.end(), item) - items.begin());
}

}  // namespace

Wiring::Wiring(int stages, std::vector<Edge> edges)
    : boundaries_(static_cast<std::size_t>(stages)),
      arguments_(static_cast<std::size_t>(stages)),
      relayed_(static_cast<std::size_t>(stages)) {
  for (const Edge& edge : edges) check(edge, stages);
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::pair(a.to, a.argument) < std::pair(b.to, b.argument);
  });

  const auto add = [&](int boundary, const Item& item) {
    auto& items = boundaries_[static_cast<std::size_t>(boundary)];
    if (std::find(items.begin(), items.end(), item) == items.end()) items.push_back(item);
  };
  for (int stage = 1; stage < stages; ++stage) {
    const bool wired =
        std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return edge.to.value == stage; });
    if (!wired) add(stage - 1, {stage - 1, kAll});
  }
  for (const Edge& edge : edges) {
    for (int boundary = edge.from.value; boundary < edge.to.value; ++boundary) {
      add(boundary, {edge.from.value, edge.output});
    }
  }
  for (const Edge& edge : edges) {
    auto& arguments = arguments_[edge.to.index()];
    if (arguments.size() != static_cast<std::size_t>(edge.argument)) {
      throw InvalidArgument(text(edge) + ": the arguments of a stage are wired once each, from 0 on; argument " +
                            std::to_string(arguments.size()) + " was to come next");
    }
    arguments.push_back({index_of(boundaries_[edge.to.index() - 1], {edge.from.value, edge.output}), edge.gradient});
  }
  for (int stage = 0; stage < stages; ++stage) {
    for (const Item& item : boundaries_[static_cast<std::size_t>(stage)]) {
      relayed_[static_cast<std::size_t>(stage)].push_back(
          item.from == stage ? -1 : index_of(boundaries_[static_cast<std::size_t>(stage - 1)], item));
    }
  }
}

}  // namespace stagecraft
