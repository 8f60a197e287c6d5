#include "port_json.h"

#include <array>

#include "report_json.h"
#include "stagecraft/graph/report.h"

namespace stagecraft::cli {

Json value_json(const graph::Program& program, graph::ValueId id) {
  static constexpr std::array kKinds = {"tensor", "integer", "real", "flag"};
  const graph::ValueInfo& value = program.values[static_cast<std::size_t>(id)];
  Json json = {{"name", value.name}, {"kind", kKinds.at(static_cast<std::size_t>(value.kind))}};
  if (!value.is_tensor()) return json;
  json["type"] = graph::text(value.tensor.element);
  json["sizes"] = Json::array();
  for (const graph::Size& size : value.tensor.sizes) {
    json["sizes"].push_back(size.fixed() ? Json(size.value) : Json(size.expression));
  }
  json["bytes"] = graph::bytes_of(program, id);
  return json;
}

Json port_json(const graph::Program& program, const Port& port) {
  const auto* use = std::get_if<graph::Use>(&port.argument);
  if (use == nullptr || use->value == graph::kNoValue) {
    return {{"name", port.name}, {"kind", "fixed"}, {"value", fixed_text(port.argument)}};
  }
  Json json = value_json(program, use->value);
  json["name"] = port.name;
  return json;
}

}  // namespace stagecraft::cli
