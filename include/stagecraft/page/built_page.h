#pragma once

#include <span>
#include <string>

/// The page that `make page` builds: one HTML file that plans, simulates and shows schedules, see docs/guide/page.md.
namespace stagecraft {

/// A file that the page opens with: a schedule, costs or a timeline.
struct PageFile {
  std::string name;
  std::string text;
};

/// The page with these files inside. It is looked for where the variable STAGECRAFT_PAGE says, in `../share/stagecraft`
/// beside the folder of the running program, and where Stagecraft was installed. Throws FileError when it is nowhere
/// there or was not built by this version.
std::string built_page(std::span<const PageFile> files);

}  // namespace stagecraft
