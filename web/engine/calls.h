#pragma once

#include <functional>

#include "reply.h"
#include "request.h"

/// What the page can ask the engine, one function per call. Each throws as the functions of the library that it calls.
namespace stagecraft::page {

/// The known schedules and passes, as `stagecraft list --format json`.
Reply list(const Json& request);
/// The schedule itself, simulated and judged: {"source", "costs", "memory_limit"} -> facts and pictures. A schedule
/// that cannot run gets its slots and its verdict instead of times.
Reply show(const Json& request);
/// {"items": [{"source", "costs"}]} -> {"rows"}: an outcome or an error for each.
Reply compare(const Json& request);
/// {"source"} -> as `stagecraft check --format json`, with the error that the command prints.
Reply check(const Json& request);
/// {"source", "costs", "format"} -> {"text"}: byte for byte what the command writes.
Reply write(const Json& request);
/// {"source", "rank", "from", "to"} -> {"csv"}: the action in slot `from` of a row now stands before that in slot `to`.
Reply move(const Json& request);
/// {"text"} -> {"text"}: costs in full, as `stagecraft costs`.
Reply costs(const Json& request);
/// {"text", "file", "costs"?} -> a recorded run beside what was planned for it.
Reply timeline(const Json& request);
/// {"ranks", ...} -> the plan as `stagecraft plan --format json`, and its CSV; `tell` gets progress and better
/// schedules meanwhile.
Reply plan(const Json& request, const std::function<void(const Json&)>& tell);

}  // namespace stagecraft::page
