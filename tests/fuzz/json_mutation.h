#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../property/dice.h"

namespace stagecraft::fuzz {

/// Changes a JSON text so that it stays valid JSON, mostly by copying from elsewhere in it, so that names still fit.
class JsonMutation {
 public:
  using Json = nlohmann::json;

  JsonMutation(Json& root, property::Dice& dice) : dice_(dice) { collect(root); }

  /// Once per collection: pointers into the text do not outlive a change.
  void apply() {
    Json& chosen = *all_[dice_.below(all_.size())];
    if (chosen.is_array() && !chosen.empty()) return change_list(chosen);
    if (chosen.is_object() && !chosen.empty()) {
      if (dice_.chance(30))
        chosen.erase(std::next(chosen.begin(), static_cast<std::ptrdiff_t>(dice_.below(chosen.size()))));
      return;
    }
    if (chosen.is_number() && dice_.chance(50)) {
      static const std::vector<std::int64_t> numbers = {
          0, 1, -1, 2, 7, 8, 1 << 20, std::int64_t{1} << 40, INT64_MAX, INT64_MIN};
      chosen = dice_.one_of(numbers);
      return;
    }
    if (chosen.is_string() && dice_.chance(30)) {
      static const std::vector<std::string> operators = {"torch.ops.aten.add_.Tensor",
                                                         "torch.ops.aten.view.default",
                                                         "torch.ops.aten.sym_size.int",
                                                         "_operator.mul",
                                                         "torch.ops.aten.arange.default",
                                                         "torch.ops.aten.rand.default",
                                                         "torch.ops.pippy._pipe_split.default",
                                                         "torch.ops.my.op.default",
                                                         "torch.ops.aten.batch_norm.default",
                                                         "torch.ops.aten.item.default",
                                                         ""};
      chosen = dice_.one_of(operators);
      return;
    }
    // Something of the same kind.
    for (int tries = 0; tries < 50; ++tries) {
      const Json& other = *all_[dice_.below(all_.size())];
      if (other.type() != chosen.type() || other == chosen) continue;
      chosen = Json(other);
      return;
    }
  }

 private:
  void collect(Json& value) {
    all_.push_back(&value);
    if (!value.is_structured()) return;
    for (Json& child : value) collect(child);
  }

  void change_list(Json& list) {
    const auto at = [&] { return std::next(list.begin(), static_cast<std::ptrdiff_t>(dice_.below(list.size()))); };
    if (dice_.chance(30)) {
      list.erase(at());
    } else if (dice_.chance(50)) {
      std::swap(*at(), *at());
    } else {
      const Json copy = *at();
      list.insert(at(), copy);
    }
  }

  property::Dice& dice_;
  std::vector<Json*> all_;
};

}  // namespace stagecraft::fuzz
