#pragma once

#include <array>
#include <string_view>

#include "stagecraft/sim/costs.h"

/// Published bubble rates, with the profiled times they belong to. Times in ms; `comm` is the latency of a message
/// between ranks. A bubble rate is (span - work) / span, the span being the largest of any rank from its first F to its
/// last W.
namespace stagecraft::figures {

struct Times {
  double forward;
  double backward_input;
  double backward_weight;
  double comm;
};

/// Costs of a rank cut into `parts` stages; memory in activations of one whole rank per microbatch.
inline Costs costs_of(const Times& t, int parts = 1, double weight_gradient_memory = 1) {
  StageCosts stage;
  stage.forward = t.forward / parts;
  stage.backward_input = t.backward_input / parts;
  stage.backward_weight = t.backward_weight / parts;
  stage.backward = stage.backward_input + stage.backward_weight;
  stage.activation_memory = 1.0 / parts;
  stage.weight_gradient_memory = weight_gradient_memory / parts;
  Costs costs;
  costs.stages = {stage};
  costs.link.latency = t.comm;
  return costs;
}

/// Zero Bubble Pipeline Parallelism (arXiv 2401.10241), one stage per rank; 1F1B-I with several. Memory: an F adds the
/// activation 34 h + 5 a 1024, an I leaves 32 h of it for its W.
struct ZeroBubbleRow {
  std::string_view model;
  int p;
  int m;
  Times times;
  int interleaved_stages;
  double one_f_one_b;
  double interleaved;
  double zb_1p;
  double zb_h2;
  double zb_2p;

  [[nodiscard]] double weight_gradient_memory() const {
    const double h = model == "1.5B" ? 2304 : model == "6.2B" ? 4096 : model == "14.6B" ? 5120 : 6144;
    const double a = model == "1.5B" ? 24 : model == "6.2B" ? 32 : model == "14.6B" ? 40 : 48;
    return 32 * h / (34 * h + 5 * a * 1024);
  }
};

inline constexpr std::array<ZeroBubbleRow, 12> kZeroBubble = {{
    {"1.5B", 8, 24, {18.522, 18.086, 9.337, .601}, 3, .2431, .1055, .1585, .1083, .0433},
    {"1.5B", 8, 32, {18.513, 18.086, 9.331, .626}, 3, .1985, .0818, .1242, .0837, .0039},
    {"1.5B", 8, 64, {18.546, 18.097, 9.321, .762}, 3, .1240, .0443, .0674, .0444, .0026},
    {"6.2B", 8, 24, {29.718, 29.444, 19.927, .527}, 4, .2347, .0808, .1323, .0698, .0029},
    {"6.2B", 8, 32, {29.802, 29.428, 19.530, .577}, 4, .1898, .0628, .1045, .0559, .0022},
    {"6.2B", 8, 64, {29.935, 29.621, 19.388, .535}, 4, .1091, .0320, .0554, .0294, .0010},
    {"14.6B", 16, 48, {11.347, 11.248, 8.132, .377}, 3, .2552, .1104, .1397, .0672, .0066},
    {"14.6B", 16, 64, {11.307, 11.254, 8.101, .379}, 3, .2082, .0852, .1088, .0516, .0054},
    {"14.6B", 16, 128, {11.325, 11.308, 8.109, .378}, 3, .1251, .0445, .0576, .0266, .0028},
    {"28.3B", 32, 96, {10.419, 10.207, 7.715, .408}, 2, .2646, .1493, .1421, .0641, .0038},
    {"28.3B", 32, 128, {10.408, 10.204, 7.703, .408}, 2, .2168, .1164, .1106, .0490, .0029},
    {"28.3B", 32, 256, {10.402, 10.248, 7.698, .460}, 2, .1352, .0624, .0594, .0257, .0018},
}};

/// The same paper, two stages per rank in a V; times are those of one stage, half a rank.
struct ZeroBubbleVRow {
  int p;
  int m;
  Times times;
  double one_f_one_b;
  double interleaved;
  double zb_h1;
  double zb_h2;
  double zb_v;
};

inline constexpr std::array<ZeroBubbleVRow, 9> kZeroBubbleV = {{
    {16, 48, {14.407, 14.380, 9.676, 1.610}, .2668, .1499, .1536, .0823, .0697},
    {16, 64, {14.412, 14.393, 9.688, 1.621}, .2206, .1169, .1198, .0630, .0533},
    {16, 128, {14.316, 14.306, 9.639, 1.619}, .1390, .0621, .0637, .0325, .0274},
    {24, 72, {6.763, 6.969, 5.251, .755}, .2699, .1519, .1439, .0628, .0638},
    {24, 96, {6.783, 6.984, 5.259, .758}, .2229, .1184, .1121, .0480, .0483},
    {24, 192, {6.785, 6.990, 5.260, .770}, .1403, .0630, .0595, .0247, .0250},
    {32, 96, {9.458, 9.748, 7.288, .879}, .2676, .1509, .1429, .0629, .0593},
    {32, 128, {9.469, 9.744, 7.306, .892}, .2204, .1177, .1111, .0478, .0451},
    {32, 256, {9.447, 9.644, 7.193, .887}, .1362, .0626, .0593, .0251, .0236},
}};

/// Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), two stages per rank in a V; the limit counts
/// activations of one stage, held from F to W. 1F1B holds 2p of them.
struct ControllableMemoryRow {
  int p;
  int m;
  Times times;
  int limit;
  double best_known;
};

inline constexpr std::array<ControllableMemoryRow, 9> kControllableMemory = {{
    {8, 24, {4.959, 5.217, 3.519, .213}, 16, .0447},
    {8, 24, {4.959, 5.217, 3.519, .213}, 10, .1456},
    {8, 24, {4.959, 5.217, 3.519, .213}, 8, .2487},
    {16, 48, {14.407, 14.380, 9.676, 1.610}, 32, .0697},
    {16, 48, {14.407, 14.380, 9.676, 1.610}, 18, .1843},
    {16, 48, {14.407, 14.380, 9.676, 1.610}, 12, .3287},
    {24, 72, {6.763, 6.969, 5.251, .755}, 48, .0623},
    {24, 72, {6.763, 6.969, 5.251, .755}, 26, .1813},
    {24, 72, {6.763, 6.969, 5.251, .755}, 18, .3158},
}};

}  // namespace stagecraft::figures
