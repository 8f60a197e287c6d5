#include <array>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"

namespace stagecraft {
namespace {

constexpr std::array kPasses = {
    Pass{"merge_backward", "an I followed by its own W becomes one B", merge_backward},
    Pass{"unshard_reshard", "UNSHARD before a stage computes, RESHARD when others need the room",
         [](Schedule& schedule) { unshard_reshard(schedule); }},
    Pass{"reduce_grad", "REDUCE_GRAD after the last weight part of a stage", reduce_grad},
    Pass{"send_recv", "SEND and RECV wherever the next stage lives on another rank", send_recv},
    Pass{"defer_receives", "each RECV just before its consumer; needs a transport with tags", defer_receives},
    Pass{"place_receives", "each RECV as late as it delays nobody; safe on every transport", place_receives},
};

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

std::span<const Pass> passes() { return kPasses; }

const Pass& find_pass(std::string_view name) {
  std::string known;
  for (const Pass& pass : kPasses) {
    if (pass.name == name) return pass;
    known += (known.empty() ? "" : ", ") + std::string(pass.name);
  }
  throw InvalidArgument("unknown pass '" + std::string(name) + "': the known ones are " + known);
}

void run_passes(Schedule& schedule, std::string_view names) {
  std::vector<const Pass*> chain;
  while (!names.empty()) {
    const auto comma = names.find(',');
    chain.push_back(&find_pass(trimmed(names.substr(0, comma))));
    if (comma == std::string_view::npos) break;
    names.remove_prefix(comma + 1);
    if (names.empty()) find_pass("");  // a comma promises another name
  }
  for (const Pass* pass : chain) pass->run(schedule);
}

}  // namespace stagecraft
