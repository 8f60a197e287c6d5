#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

/// The style of the SVG: colour for the kind, shade for the stage, outline for the role.
namespace stagecraft::detail {

/// Number of shades, from full colour (0, a rank's first stage) to pale (kShades - 1, its last). The same scale in all
/// pictures.
inline constexpr int kShades = 8;

/// Shade of the index-th of `count` stages of a rank.
int shade_of(int index, int count);
/// Shade of a stage of `placement`; full colour for an unknown stage.
int shade_of(const Placement& placement, StageId stage);

/// Colour "#rrggbb" of a plain action; only compute has shades. All colours are light enough for dark text.
std::string fill_of(ActionKind kind, int shade);

/// The text of the legend next to a swatch.
std::string_view legend_text(ActionKind kind);

/// The label of a cell: the microbatch, or a letter and the stage for actions on a whole stage.
std::string label_of(const Action& part);

struct Box {
  double x;
  double y;
  double width;
  double height;
};

/// Path data: a tag pointing right for a SEND, a notch on the left for a RECV, else a rectangle.
std::string outline(ActionKind kind, const Box& box);

/// A number with at most two decimals: "12", "0.5".
std::string num(double value);

inline constexpr std::string_view kInk = "#14181d";
inline constexpr std::string_view kFaintInk = "#5a6470";

}  // namespace stagecraft::detail
