#include "svg_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace stagecraft::detail {
namespace {

struct Look {
  unsigned rgb;
  std::string_view legend;
};

/// Colours by ActionKind. Compute: hues that remain distinct under the common forms of colour blindness (sky blue,
/// orange, green and purple of Okabe and Ito). Others: greys with a hint of the related hue, distinguished by outline
/// and letter.
constexpr std::array<Look, kActionKinds> kLooks = {{
    {0xebeff3, "idle"},
    {0x56b4e9, "F forward"},
    {0xe69f00, "B backward"},
    {0x009e73, "I input gradient"},
    {0xcc79a7, "W weight gradient"},
    {0xffffff, "overlap, both at once"},
    {0xe2e2e2, "U UNSHARD"},
    {0xcbcbcb, "R RESHARD"},
    {0xc3b8d3, "G REDUCE_GRAD"},
    {0xb9cddb, "SEND_F"},
    {0xd5e2eb, "RECV_F"},
    {0xdcc9a3, "SEND_B"},
    {0xebe0c9, "RECV_B"},
}};

constexpr double kPalest = 0.64;  // share of white in the last shade

unsigned towards_white(unsigned channel, double share) {
  return static_cast<unsigned>(std::lround(channel + (255.0 - channel) * share));
}

}  // namespace

int shade_of(int index, int count) {
  return count < 2 ? 0 : static_cast<int>(std::lround(double(index) / (count - 1) * (kShades - 1)));
}

int shade_of(const Placement& placement, StageId stage) {
  if (!placement.contains(stage)) return 0;
  return shade_of(placement.local_index(stage), static_cast<int>(placement.stages_of(placement.rank_of(stage)).size()));
}

std::string fill_of(ActionKind kind, int shade) {
  const unsigned rgb = kLooks[static_cast<std::size_t>(kind)].rgb;
  const double share = is_compute(kind) ? kPalest * shade / (kShades - 1) : 0.0;
  return fmt::format("#{:02x}{:02x}{:02x}", towards_white(rgb >> 16, share), towards_white(rgb >> 8 & 0xff, share),
                     towards_white(rgb & 0xff, share));
}

std::string_view legend_text(ActionKind kind) { return kLooks[static_cast<std::size_t>(kind)].legend; }

std::string label_of(const Action& part) {
  if (has_microbatch(part.kind())) return std::to_string(part.microbatch().value);
  return legend_text(part.kind()).front() + std::to_string(part.stage().value);
}

std::string num(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string outline(ActionKind kind, const Box& box) {
  const std::string start = fmt::format("M{} {}", num(box.x), num(box.y));
  const double tip = box.width < 6 ? 0 : std::min(4.0, box.width / 4);
  if (tip > 0 && is_send(kind)) {
    return fmt::format("{0}h{1}l{2} {3}l-{2} {3}h-{1}z", start, num(box.width - tip), num(tip), num(box.height / 2));
  }
  if (tip > 0 && is_receive(kind)) {
    return fmt::format("{0}h{1}v{2}h-{1}l{3}-{4}z", start, num(box.width), num(box.height), num(tip),
                       num(box.height / 2));
  }
  return fmt::format("{0}h{1}v{2}h-{1}z", start, num(box.width), num(box.height));
}

}  // namespace stagecraft::detail
