#include "readers.h"

#include "parse_json.h"

namespace stagecraft::graph {
namespace {

std::vector<std::int64_t> fixed_sizes(const Cursor& cursor) {
  std::vector<std::int64_t> result;
  cursor.each([&](const Cursor& item) { result.push_back(item["as_int"].integer()); });
  return result;
}

/// One past the last element of a tensor in its record; -1 on overflow.
std::int64_t end_of(const StoredTensor& tensor) {
  std::int64_t end = tensor.offset;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return 0;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.sizes[i] - 1, tensor.strides[i], &reach) ||
        __builtin_add_overflow(end, reach, &end)) {
      return -1;
    }
  }
  return __builtin_add_overflow(end, 1, &end) ? -1 : end;
}

/// What is wrong with the tensor; empty if nothing is.
std::string fault_of(const StoredTensor& tensor, std::uint64_t record_size) {
  if (tensor.sizes.size() != tensor.strides.size()) return "does not have as many strides as sizes";
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] < 0 || tensor.strides[i] < 0) return "has a negative size or stride";
    if (__builtin_mul_overflow(elements, tensor.sizes[i], &elements) || elements > (std::int64_t{1} << 48))
      return "is too large";
  }
  if (tensor.offset < 0) return "begins before its record";
  const std::int64_t end = end_of(tensor);
  const std::uint64_t room = record_size / static_cast<std::uint64_t>(bytes_of(tensor.element));
  if (end >= 0 && static_cast<std::uint64_t>(end) <= room) return {};
  return "needs " + (end < 0 ? std::string("more than 2^63") : std::to_string(end)) + " elements of " +
         std::string(text(tensor.element)) + ", but its record '" + tensor.record + "' has only " +
         std::to_string(record_size) + " bytes: save the model again";
}

}  // namespace

nlohmann::json parsed_record(const ZipArchive& archive, const std::string& record) {
  try {
    return json::parse<nlohmann::json>(archive.read_text(record), "save the model again");
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("record '" + record + "': " + error.what());
  }
}

StoredTensors read_stored(const ZipArchive& archive, const std::string& folder, const std::string& configuration,
                          Faults& faults) {
  StoredTensors result;
  if (!archive.contains(folder + configuration)) return result;
  const nlohmann::json text = parsed_record(archive, folder + configuration);
  Cursor(text, configuration)["config"].each_entry([&](const std::string& name, const Cursor& entry) {
    const auto refuse = [&](const std::string& why) {
      faults.add("the weight '" + name + "' " + why);
      result.refused.insert(name);
    };
    if (entry["use_pickle"].flag()) {
      refuse("is pickled, which is not read: keep it out of the model, or make it an ordinary tensor");
      return;
    }
    const Cursor meta = entry["tensor_meta"];
    StoredTensor tensor;
    const std::int64_t element = meta["dtype"].integer();
    if (!is_element_type(element)) {
      refuse("has the element type " + std::to_string(element) + ", which this format does not have");
      return;
    }
    tensor.element = static_cast<ElementType>(element);
    tensor.record = folder + entry["path_name"].text();
    tensor.sizes = fixed_sizes(meta["sizes"]);
    tensor.strides = fixed_sizes(meta["strides"]);
    tensor.offset = meta["storage_offset"]["as_int"].integer();
    tensor.requires_grad = meta["requires_grad"].flag();
    if (meta.has("layout") && meta["layout"].integer() != static_cast<int>(Layout::kStrided)) {
      refuse("is sparse, which is not supported");
      return;
    }
    if (!archive.contains(tensor.record)) {
      refuse("is missing: there is no record '" + tensor.record + "': save the model again");
      return;
    }
    if (const std::string fault = fault_of(tensor, archive.size(tensor.record)); !fault.empty()) {
      refuse(fault);
      return;
    }
    result.tensors.emplace(name, std::move(tensor));
  });
  return result;
}

}  // namespace stagecraft::graph
