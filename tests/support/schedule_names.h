#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "stagecraft/schedule/generator.h"

namespace stagecraft {

/// Names of every schedule with backwards, to parameterise a test by.
inline std::vector<std::string> training_schedules() {
  std::vector<std::string> names;
  for (const Generator* generator : generators()) {
    if (generator->name != "ForwardOnly") names.emplace_back(generator->name);
  }
  return names;
}

/// A schedule's name as the last part of a test's.
inline std::string test_name(const testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

}  // namespace stagecraft
