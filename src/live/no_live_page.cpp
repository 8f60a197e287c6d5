// Where there is no cpp-httplib.

#include "stagecraft/core/error.h"
#include "stagecraft/live/live_page.h"

namespace stagecraft {

class LivePage::Implementation {};

LivePage::LivePage(const LiveOptions&) {
  throw InvalidArgument(
      "a page of a run needs cpp-httplib, and Stagecraft was built without it: install libcpp-httplib-dev and build "
      "again");
}
LivePage::~LivePage() = default;
const std::string& LivePage::url() const { throw InternalError("there is no page"); }
int LivePage::port() const { return 0; }
bool LivePage::is_watched() const { return false; }
void LivePage::publish(const std::string&, std::string) {}

}  // namespace stagecraft
