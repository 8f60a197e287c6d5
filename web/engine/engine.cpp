// The door between the page and the engine: one call takes a name and a request in JSON and leaves a reply, text and
// numbers, to be read until the next call. Errors are replies too.

#include <emscripten.h>

#include <map>
#include <string>

#include "calls.h"
#include "failure.h"

namespace stagecraft::page {
namespace {

// NOLINTNEXTLINE(*-non-const-global-variables): read by the page after the call that wrote them
std::string reply_text;
std::vector<double> reply_numbers;

EM_JS(void, tell_page, (const char* text), {
  if (Module["onStagecraftEvent"]) Module["onStagecraftEvent"](UTF8ToString(text));
});

Reply planned(const Json& request) {
  return plan(request, [](const Json& event) { tell_page(event.dump().c_str()); });
}

Reply dispatch(const std::string& name, const Json& request) {
  static const std::map<std::string, Reply (*)(const Json&)> calls = {
      {"list", list}, {"show", show},   {"compare", compare},   {"check", check}, {"write", write},
      {"move", move}, {"costs", costs}, {"timeline", timeline}, {"plan", planned}};
  const auto call = calls.find(name);
  if (call == calls.end()) throw InternalError("the page called '" + name + "', which the engine does not have");
  return call->second(request);
}

Json error_json(const cli::Failure& failure) {
  return {{"message", cli::printable(failure.what())}, {"details", cli::printable_lines(failure.details())}};
}

Reply answer(const std::string& name, const std::string& text) {
  std::string subject;
  try {
    const Json request = Json::parse(text);
    subject = request.value("subject", std::string());
    return dispatch(name, request);
  } catch (const std::bad_alloc&) {
    Reply reply;
    reply.json["error"] = {{"message", "not enough memory in the page: use fewer ranks, stages or microbatches"},
                           {"details", ""}};
    return reply;
  } catch (...) {
    Reply reply;
    reply.json["error"] = error_json(cli::current_failure(subject));
    return reply;
  }
}

}  // namespace
}  // namespace stagecraft::page

extern "C" {

void stagecraft_call(const char* name, const char* request) {
  using namespace stagecraft::page;
  Reply reply = answer(name, request);
  reply_text = reply.json.dump(-1, ' ', false, Json::error_handler_t::replace);
  reply_numbers = std::move(reply.numbers);
}

const char* stagecraft_reply() { return stagecraft::page::reply_text.data(); }
std::size_t stagecraft_reply_size() { return stagecraft::page::reply_text.size(); }
const double* stagecraft_numbers() { return stagecraft::page::reply_numbers.data(); }
std::size_t stagecraft_numbers_size() { return stagecraft::page::reply_numbers.size(); }
}
