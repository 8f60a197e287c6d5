#include "stagecraft/page/built_page.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

constexpr std::string_view kBegin = R"(<script type="application/json" id="embedded">)";
constexpr std::string_view kEmpty = "[]";

std::vector<std::filesystem::path> places() {
  const std::filesystem::path below = std::filesystem::path("share") / "stagecraft" / "page.html";
  std::vector<std::filesystem::path> found;
  if (const char* given = std::getenv("STAGECRAFT_PAGE"); given != nullptr && *given != '\0') return {given};
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) found.push_back(program.parent_path().parent_path() / below);
  found.emplace_back(STAGECRAFT_INSTALLED_PAGE);
  return found;
}

std::string read_page() {
  const std::vector<std::filesystem::path> all = places();
  for (const std::filesystem::path& place : all) {
    std::ifstream file(place, std::ios::binary);
    if (!file) continue;
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  throw FileError(all.front().string(),
                  "the page is not there: build it with `make page`, or set STAGECRAFT_PAGE to where it is");
}

/// JSON that can stand inside a script element: no end of the element can be in it.
std::string inside_script(const nlohmann::ordered_json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string built_page(std::span<const PageFile> files) {
  std::string page = read_page();
  const std::size_t at = page.find(kBegin);
  if (at == std::string::npos || page.compare(at + kBegin.size(), kEmpty.size(), kEmpty) != 0) {
    throw FileError("page.html", "it is not a page that `make page` has built: build it again");
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const PageFile& file : files) json.push_back({{"name", file.name}, {"text", file.text}});
  return page.replace(at + kBegin.size(), kEmpty.size(), inside_script(json));
}

}  // namespace stagecraft
