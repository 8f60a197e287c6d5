#pragma once

#include <functional>
#include <string>
#include <vector>

#include "concurrency/draw.h"

/// The operators that models are made of, as data.
namespace stagecraft::concurrency {

struct Operator {
  std::string name;
  std::vector<at::ScalarType> types;
  /// Draws its inputs and computes.
  std::function<at::Tensor(Draw&)> compute;
};

std::vector<Operator> convolutions();
std::vector<Operator> products();
std::vector<Operator> pointwise();
std::vector<Operator> reductions();
std::vector<Operator> layers();
std::vector<Operator> indexing();

}  // namespace stagecraft::concurrency
