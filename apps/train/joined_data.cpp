#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

#include "data_kinds.h"
#include "stagecraft/core/error.h"

namespace stagecraft::train {
namespace {

class JoinedData : public Data {
 public:
  explicit JoinedData(std::vector<std::unique_ptr<Data>> parts)
      : Data(parts.front()->path()), parts_(std::move(parts)) {
    for (const auto& part : parts_) ends_.push_back(rows() + part->rows());
  }

  [[nodiscard]] std::int64_t rows() const override { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] at::Tensor input(const std::string& name, const Rows& which, std::int64_t along) const override {
    return gather(which, along, [&](const Data& part, const Rows& own) { return part.input(name, own, along); });
  }
  [[nodiscard]] at::Tensor targets(const std::string& name, const Rows& which, std::int64_t along) const override {
    return gather(which, along, [&](const Data& part, const Rows& own) { return part.targets(name, own, along); });
  }
  [[nodiscard]] at::Tensor whole(const std::string& name) const override { return parts_.front()->whole(name); }
  /// That of the first file; along the rows there are more.
  [[nodiscard]] TensorSpec spec_of_targets(const std::string& name) const override {
    return parts_.front()->spec_of_targets(name);
  }
  [[nodiscard]] std::optional<std::int64_t> other_rows(const std::string& name, std::int64_t along) const override {
    for (const auto& part : parts_) {
      if (const auto other = part->other_rows(name, along)) return other;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::int64_t tokens_per_row() const override { return parts_.front()->tokens_per_row(); }
  [[nodiscard]] std::string fingerprint() const override {
    std::string text;
    for (const auto& part : parts_) text += (text.empty() ? "" : ", then ") + part->fingerprint();
    return text;
  }

  [[nodiscard]] std::string place_of(const std::string& name, std::int64_t row, std::int64_t token) const override {
    const std::size_t part = part_with(row);
    return parts_[part]->place_of(name, row - first_of(part), token) + " of " + parts_[part]->path();
  }

 private:
  using Read = std::function<at::Tensor(const Data& part, const Rows& own)>;

  [[nodiscard]] std::size_t part_with(std::int64_t row) const {
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
  }
  [[nodiscard]] std::int64_t first_of(std::size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }

  /// Reads every file once, and puts the rows into the order that was asked for.
  [[nodiscard]] at::Tensor gather(const Rows& which, std::int64_t along, const Read& read) const {
    std::vector<Rows> own(parts_.size());
    std::vector<std::vector<std::int64_t>> places(parts_.size());
    for (std::size_t i = 0; i < which.size(); ++i) {
      const std::size_t part = part_with(which[i]);
      own[part].push_back(which[i] - first_of(part));
      places[part].push_back(static_cast<std::int64_t>(i));
    }
    std::vector<at::Tensor> pieces;
    std::vector<std::int64_t> order(which.size());
    std::int64_t next = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      if (own[part].empty()) continue;
      pieces.push_back(read(*parts_[part], own[part]));
      for (const std::int64_t place : places[part]) order[static_cast<std::size_t>(place)] = next++;
    }
    if (pieces.size() == 1) return pieces.front();
    return at::cat(pieces, along).index_select(along, at::tensor(order, at::kLong));
  }

  std::vector<std::unique_ptr<Data>> parts_;
  std::vector<std::int64_t> ends_;  // the number of the row behind the last one of each part
};

}  // namespace

std::unique_ptr<Data> join_data(std::vector<std::unique_ptr<Data>> parts, const std::vector<std::string>& paths,
                                const WantedData& wanted) {
  for (std::size_t i = 1; i < parts.size(); ++i) {
    Faults faults;
    for (const std::string& name : wanted.targets) {
      const TensorSpec first = parts.front()->spec_of_targets(name);
      const TensorSpec own = parts[i]->spec_of_targets(name);
      if (own.dtype != first.dtype || own.sizes.size() != first.sizes.size())
        faults.add("'" + name + "' is " + own.text() + ", and " + first.text() + " in " + paths.front());
    }
    for (const ModelLeaf& leaf : wanted.whole) {
      if (!parts[i]->whole(leaf.name).equal(parts.front()->whole(leaf.name)))
        faults.add("'" + leaf.name + "', which all rows share, is another one in " + paths.front());
    }
    if (parts[i]->tokens_per_row() != parts.front()->tokens_per_row())
      faults.add("these are rows of another kind than those in " + paths.front());
    if (!faults.empty()) throw FileError(paths[i], faults.text() + ": give files that belong together");
  }
  return std::make_unique<JoinedData>(std::move(parts));
}

}  // namespace stagecraft::train
