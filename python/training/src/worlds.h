#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "objects.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft::python {

/// What a world takes along when it ends.
class Dependent {
 public:
  virtual ~Dependent() = default;
  /// Called without the GIL. After it, the dependent does not use the world.
  virtual void end() = 0;
};

/// A rank's view of its world, for Python. Every function may be called after the world has ended; `world` then throws.
class WorldBox {
 public:
  virtual ~WorldBox() = default;
  WorldBox(const WorldBox&) = delete;
  WorldBox& operator=(const WorldBox&) = delete;

  [[nodiscard]] World& world() const;
  [[nodiscard]] bool is_open() const { return world_ != nullptr; }
  void add(const std::shared_ptr<Dependent>& dependent);
  /// Called before what runs like a step.
  virtual void begin_step() {}
  /// Ends the pipelines of this world, then tells the other ranks that this one has ended. Called without the GIL; the
  /// second time it does nothing.
  void close(const std::optional<std::string>& failure = std::nullopt);

 protected:
  explicit WorldBox(World* world) : world_(world) {}
  /// Called once, when no dependent is left.
  virtual void leave(const std::optional<std::string>& failure) = 0;

  World* world_;

 private:
  std::vector<std::weak_ptr<Dependent>> dependents_;
};

void bind_worlds(py::module_& module);

}  // namespace stagecraft::python
