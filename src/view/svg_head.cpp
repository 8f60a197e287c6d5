#include "svg_head.h"

#include <fmt/format.h>

#include "escape.h"
#include "svg_style.h"

namespace stagecraft::detail {

std::string svg_head(double width, double height, std::string_view name, std::string_view title,
                     std::string_view subtitle) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" )"
      R"(font-family="system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif" font-size="11" fill="{2}">
<title>{3}</title>
<defs><pattern id="stagecraft-idle" width="6" height="6" patternUnits="userSpaceOnUse">)"
      R"(<path fill="{4}" d="M0 0h6v6h-6z"/><path stroke="#cdd5de" d="M-1 1l2-2M0 6l6-6M5 7l2-2"/></pattern></defs>
<path fill="#fff" d="M0 0h{0}v{1}h-{0}z"/>
<text x="{5}" y="30" font-size="{6}" font-weight="600">{7}</text>
<text x="{5}" y="48" fill="{8}">{9}</text>
)",
      num(width), num(height), kInk, xml_escaped(name), fill_of(ActionKind::kIdle, 0), num(kSvgMargin),
      num(kSvgTitleFont), xml_escaped(title), kFaintInk, subtitle);
}

}  // namespace stagecraft::detail
