// Compares what the torch-free half assumes about operators with the schemas of the installed LibTorch.

#include "stagecraft/graph/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>

namespace stagecraft::graph {
namespace {

using testing::IsEmpty;

/// Without TorchScript's lists, dictionaries and generators, which exported programs do not contain.
template <typename Visit>
int for_each_operator(const Visit& visit) {
  int count = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) continue;
    visit(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name, handle->schema());
    ++count;
  }
  return count;
}

bool holds_tensors(const c10::Argument& argument) { return argument.type()->str().find("Tensor") != std::string::npos; }

TEST(Operators, WhoseResultsShareMemoryAreKnown) {
  std::set<std::string> unknown;
  const int count = for_each_operator([&](const std::string& name, const c10::FunctionSchema& schema) {
    const bool shares = std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
      return result.alias_info() != nullptr && holds_tensors(result);
    });
    if (shares && !may_share_memory(name)) unknown.insert(name);
  });
  EXPECT_GT(count, 2000);
  EXPECT_THAT(unknown, IsEmpty());
}

TEST(Operators, ArgumentsThatAreChangedAreKnown) {
  std::set<std::string> unknown;
  for_each_operator([&](const std::string& name, const c10::FunctionSchema& schema) {
    const std::vector<std::string_view> named = changed_arguments(name);
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite() || !holds_tensors(argument)) continue;
      const bool known = (i == 0 && changes_first_argument(name)) ||
                         std::find(named.begin(), named.end(), argument.name()) != named.end();
      if (!known) unknown.insert(name + "(" + argument.name() + ")");
    }
  });
  EXPECT_THAT(unknown, IsEmpty());
}

TEST(Operators, NoneIsBelievedToChangeWhatItLeavesAlone) {
  std::set<std::string> wrong;
  for_each_operator([&](const std::string& name, const c10::FunctionSchema& schema) {
    if (!changes_first_argument(name) || schema.arguments().empty()) return;
    const c10::Argument& first = schema.arguments().front();
    if (first.alias_info() == nullptr || !first.alias_info()->isWrite()) wrong.insert(name);
  });
  EXPECT_THAT(wrong, IsEmpty());
}

TEST(Operators, NamespacesOfLibTorchAreKnown) {
  std::set<std::string> unknown;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string space = name.name.substr(0, name.name.find("::"));
    const bool of_tests = space == "_test" || space == "transformers";  // transformers: registered by Stagecraft
    if (!of_tests && !is_in_libtorch(name.name)) unknown.insert(space);
  }
  EXPECT_THAT(unknown, IsEmpty());
  EXPECT_FALSE(is_in_libtorch("mylib::add"));
  EXPECT_FALSE(is_in_libtorch("torch._functorch.predispatch._add_batch_dim"));
}

}  // namespace
}  // namespace stagecraft::graph
