#pragma once

#include <string>
#include <string_view>

/// Escaping of names, which come from users and file names and may be any bytes. JSON and XML need valid UTF-8 without
/// certain characters: anything else becomes U+FFFD, the replacement character.
namespace stagecraft::detail {

/// Without the surrounding quotes.
std::string json_escaped(std::string_view text);

/// For element content and attribute values.
std::string xml_escaped(std::string_view text);

/// At most `most` code points, the last an ellipsis when something was cut. The result is valid UTF-8.
std::string shortened(std::string_view text, std::size_t most);

}  // namespace stagecraft::detail
