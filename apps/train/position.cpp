#include "position.h"

#include <charconv>

#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/runtime/together.h"

namespace stagecraft::train {
namespace {

// Names that begin with "stagecraft." belong to the checkpoint itself.
constexpr const char* kRowsTaken = "train.rows_taken";
constexpr const char* kRowsPerEpoch = "train.rows_per_epoch";
constexpr const char* kOrder = "train.order";
constexpr const char* kData = "train.data";

/// -1 if it is no number.
std::int64_t rows_in(const std::string& text) {
  std::int64_t rows = -1;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, rows);
  return error == std::errc() && last == end && rows >= 0 ? rows : -1;
}

std::int64_t rows_taken_of(const std::string& path, const DataPosition& own) {
  constexpr const char* kAnew = "--new-data to begin with the first row";
  const safetensors::Reader reader(path);
  const auto text = [&](const char* key) {
    const auto found = reader.metadata().find(key);
    return found == reader.metadata().end() ? std::string() : found->second;
  };
  const std::int64_t rows_taken = rows_in(text(kRowsTaken));
  if (rows_taken < 0 || text(kOrder).empty()) {
    throw FileError(path, std::string("it does not say how far its run had come in the data: add ") + kAnew);
  }
  Faults faults;
  if (text(kData) != own.data) {
    faults.add("it was saved by a run on other data (" + text(kData) + "; these are " + own.data + ")");
  }
  if (text(kOrder) != own.order) {
    faults.add("it was saved by a run that took rows " + text(kOrder) + ", and this one takes them " + own.order);
  }
  if (faults.empty() && text(kRowsPerEpoch) != std::to_string(own.rows_per_epoch)) {
    faults.add("it was saved by a run that trained on " + text(kRowsPerEpoch) + " rows of the data, and this one on " +
               std::to_string(own.rows_per_epoch) + " (--eval-share holds some out)");
  }
  if (!faults.empty()) {
    throw FileError(path, faults.text() +
                              ": give the data, --seed, --in-order and --eval-share of that run to go on where "
                              "it stopped, or " +
                              kAnew);
  }
  return rows_taken;
}

}  // namespace

safetensors::Metadata DataPosition::metadata() const {
  return {{kRowsTaken, std::to_string(rows_taken)},
          {kRowsPerEpoch, std::to_string(rows_per_epoch)},
          {kOrder, order},
          {kData, data}};
}

Beginning beginning_of(World& world, const Options& options, const std::optional<std::string>& saved,
                       const DataPosition& own) {
  if (!options.resume || !saved) return {};
  std::string rows_taken;
  together(world, [&] {
    if (world.world_rank().value == 0) {
      rows_taken = std::to_string(options.new_data ? 0 : rows_taken_of(*saved, own));
    }
    const auto during = world.everyone().during("where to resume in the data");
    rows_taken = world.everyone().broadcast({{}, rows_taken}, 0).header;
  });
  return {saved, rows_in(rows_taken)};
}

}  // namespace stagecraft::train
