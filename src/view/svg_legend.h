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

/// Starts at (left, top); starts a new line where it would extend beyond `right`.
SvgLegend svg_legend(const SvgContents& contents, bool labels, double left, double top, double right);

}  // namespace stagecraft::detail
