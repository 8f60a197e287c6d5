#pragma once

#include <string>

#include "svg_layout.h"

namespace stagecraft::detail {

/// Swatches with their texts for the kinds that are present, broken into lines.
struct SvgLegend {
  std::string text;
  double width = 0;
  double height = 0;
};

/// Begins at (left, top); takes a new line rather than pass `right`.
SvgLegend svg_legend(const SvgContents& contents, bool labels, double left, double top, double right);

}  // namespace stagecraft::detail
