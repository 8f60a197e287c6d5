#include "stagecraft/schedule/action.h"

#include <array>
#include <charconv>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

constexpr std::array<std::string_view, kActionKinds> kKindTexts = {
    "", "F", "B", "I", "W", "OVERLAP_F_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

constexpr ActionTextError kNotAnAction{
    "a cell is STAGE KIND MICROBATCH such as 2F0 or 3SEND_F1, an OVERLAP such as (0F5;7B2)OVERLAP_F_B, or empty"};
constexpr ActionTextError kUnknownKind{
    "the kind must be one of F, B, I, W, UNSHARD, RESHARD, REDUCE_GRAD, SEND_F, RECV_F, SEND_B, RECV_B (upper case)"};
constexpr ActionTextError kStageTooLarge{"the stage must be at most 16777215"};
constexpr ActionTextError kMicrobatchTooLarge{"the microbatch must be at most 2147483646"};
constexpr ActionTextError kMicrobatchMissing{"this kind needs a microbatch after it, as in 2F0"};
constexpr ActionTextError kMicrobatchUnwanted{
    "UNSHARD, RESHARD and REDUCE_GRAD concern a whole stage: no microbatch after it"};
constexpr ActionTextError kOverlapShape{
    "an overlap is two actions in parentheses, one F and one B or I, then OVERLAP_F_B, as in (0F5;7B2)OVERLAP_F_B"};

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const auto begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// Takes the digits at the front of `text`. Returns -1 when there are none, -2 when the number exceeds `limit`.
std::int64_t take_number(std::string_view& text, std::int32_t limit) {
  std::size_t digits = 0;
  while (digits < text.size() && is_digit(text[digits])) ++digits;
  if (digits == 0) return -1;
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + digits, value);
  text.remove_prefix(digits);
  return result.ec != std::errc() || value > limit ? -2 : value;
}

ActionKind kind_from_text(std::string_view text) {
  for (std::size_t i = 1; i < kKindTexts.size(); ++i) {
    if (kKindTexts[i] == text) return static_cast<ActionKind>(i);
  }
  return ActionKind::kIdle;
}

std::variant<Action, ActionTextError> parse_plain(std::string_view text) {
  const std::int64_t stage = take_number(text, kMaxStage);
  if (stage == -1) return kNotAnAction;
  if (stage == -2) return kStageTooLarge;
  std::size_t kind_length = 0;
  while (kind_length < text.size() && !is_digit(text[kind_length])) ++kind_length;
  const ActionKind kind = kind_from_text(text.substr(0, kind_length));
  if (kind == ActionKind::kIdle || kind == ActionKind::kOverlap) return kUnknownKind;
  text.remove_prefix(kind_length);

  if (!has_microbatch(kind)) {
    if (!text.empty()) return kMicrobatchUnwanted;
    return Action::of_stage(kind, StageId(stage));
  }
  const std::int64_t microbatch = take_number(text, kMaxMicrobatch);
  if (microbatch == -1) return kMicrobatchMissing;
  if (microbatch == -2) return kMicrobatchTooLarge;
  if (!text.empty()) return kNotAnAction;
  return Action(kind, StageId(stage), MicrobatchId(microbatch));
}

bool are_forward_and_backward(const Action& a, const Action& b) {
  return (a.kind() == ActionKind::kForward && gives_input_gradient(b.kind())) ||
         (b.kind() == ActionKind::kForward && gives_input_gradient(a.kind()));
}

std::variant<Action, ActionTextError> parse_overlap(std::string_view text) {
  const auto close = text.find(')');
  if (close == std::string_view::npos || text.substr(close + 1) != kKindTexts[static_cast<int>(ActionKind::kOverlap)]) {
    return kOverlapShape;
  }
  const std::string_view inside = text.substr(1, close - 1);
  const auto semicolon = inside.find(';');
  if (semicolon == std::string_view::npos) return kOverlapShape;
  const auto first = parse_plain(trim(inside.substr(0, semicolon)));
  if (std::holds_alternative<ActionTextError>(first)) return first;
  const auto second = parse_plain(trim(inside.substr(semicolon + 1)));
  if (std::holds_alternative<ActionTextError>(second)) return second;
  const Action& a = std::get<Action>(first);
  const Action& b = std::get<Action>(second);
  if (!are_forward_and_backward(a, b)) return kOverlapShape;
  return Action::overlap(a, b);
}

void append_number(std::string& out, std::int32_t value) {
  std::array<char, 12> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  out.append(buffer.data(), end);
}

void append_plain(std::string& out, const Action& action) {
  append_number(out, action.stage().value);
  out += kind_text(action.kind());
  if (has_microbatch(action.kind())) append_number(out, action.microbatch().value);
}

}  // namespace

std::string_view kind_text(ActionKind kind) { return kKindTexts[static_cast<std::size_t>(kind)]; }

void append_text(std::string& out, const Action& action) {
  if (action.is_idle()) return;
  if (!action.is_overlap()) return append_plain(out, action);
  out += '(';
  append_plain(out, action.first());
  out += ';';
  append_plain(out, action.second());
  out += ')';
  out += kind_text(ActionKind::kOverlap);
}

std::string to_text(const Action& action) {
  std::string text;
  append_text(text, action);
  return text;
}

std::variant<Action, ActionTextError> parse_action(std::string_view text) {
  text = trim(text);
  if (text.empty()) return Action::idle();
  return text.front() == '(' ? parse_overlap(text) : parse_plain(text);
}

Action to_action(std::string_view text) {
  const auto parsed = parse_action(text);
  if (const auto* error = std::get_if<ActionTextError>(&parsed)) {
    throw InvalidArgument("'" + std::string(text) + "' is not an action: " + std::string(error->rule));
  }
  return std::get<Action>(parsed);
}

}  // namespace stagecraft
