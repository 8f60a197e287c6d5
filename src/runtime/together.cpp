#include "stagecraft/runtime/together.h"

#include <c10/util/Exception.h>

#include <exception>

#include "stagecraft/core/error.h"

namespace stagecraft {

void together(World& world, const std::function<void()>& work, const std::function<void()>& on_failure) {
  if (const auto over = world.transport().over()) throw AbortedError(over->message, over->rank);
  std::exception_ptr own;
  const auto abort_saying = [&](const std::string& text) {
    own = std::current_exception();
    world.transport().abort({world.world_rank(), text});
  };
  const auto abort = [&](const std::string& what) { abort_saying(world.name() + ": " + what); };
  try {
    work();
  } catch (const AbortedError&) {
    own = std::current_exception();
  } catch (const StepError& error) {
    abort_saying(error.what());  // its text names the rank
  } catch (const c10::Error& error) {
    abort(error.what_without_backtrace());
  } catch (const std::exception& error) {
    abort(error.what());
  } catch (...) {
    abort(kUnknownException);
  }
  if (own && on_failure) on_failure();
  std::optional<Failure> failure;
  try {
    failure = world.transport().settle(world.timeout());
  } catch (const TransportError& error) {
    // This rank goes on while others may still be in the step: tell them, so that nothing later is mistaken for it.
    world.transport().give_up({error.peer(), error.what()});
    if (own) std::rethrow_exception(own);
    throw;
  }
  if (!failure) return;
  if (own && failure->rank == world.world_rank()) std::rethrow_exception(own);
  throw AbortedError(failure->message, failure->rank);
}

}  // namespace stagecraft
