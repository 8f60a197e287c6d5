#include <ATen/Context.h>

#include <atomic>

#include "options.h"
#include "stagecraft/core/error.h"
#include "stagecraft/runtime/launch.h"
#include "training.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUnusable = 2;  // as the other commands say it: what they were given

}  // namespace

int main(int argc, char** argv) {
  using namespace stagecraft;
  train::Options options;
  int code = 0;
  if (!train::parse(argc, argv, options, code)) return code;
  const bool cuda = options.device == "cuda" || (options.device == "auto" && at::hasCUDA());
  std::atomic<int> failed = kUnusable;  // until something fails that was not given
  const LaunchOptions where = {.ranks = options.ranks,
                               .replicas = options.replicas,
                               .device_type = cuda ? at::kCUDA : at::kCPU,
                               .name = "stagecraft: train"};
  const auto program = [&](World& world) {
    try {
      train::train(world, options);
    } catch (const InvalidArgument&) {
      throw;
    } catch (const FileError&) {
      throw;
    } catch (const AbortedError&) {
      throw;  // another rank's, which says itself what it was
    } catch (...) {
      failed = kFailed;
      throw;
    }
  };
  return launch(argc, argv, where, program) == 0 ? 0 : failed.load();
}
