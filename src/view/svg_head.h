#pragma once

#include <string>
#include <string_view>

namespace stagecraft::detail {

inline constexpr double kSvgMargin = 16;
inline constexpr double kSvgTitleFont = 16;
inline constexpr double kSvgLegendTop = 60;

/// The start of every picture: the page, its title, the line below, and the pattern of idle time
/// (`url(#stagecraft-idle)`). `name` is the document title; `subtitle` is not escaped.
std::string svg_head(double width, double height, std::string_view name, std::string_view title,
                     std::string_view subtitle);

}  // namespace stagecraft::detail
