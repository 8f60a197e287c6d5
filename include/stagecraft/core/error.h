#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "stagecraft/core/ids.h"

/// Every failure Stagecraft reports is one of these types. A message holds the value that was wrong, the rule it breaks
/// and the remedy, on one line.
namespace stagecraft {

/// Message text for an exception that is not a std::exception.
inline constexpr const char* kUnknownException = "an exception of unknown type (not a std::exception)";

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument is outside what the called function accepts. Nothing was changed.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Text that is not a schedule, such as a cell that is not an action or a file that is too large. Row and column count
/// from 1, as in an editor; 0 means the file as a whole.
class ParseError : public Error {
 public:
  ParseError(const std::string& message, int row, int column) : Error(message), row_(row), column_(column) {}
  [[nodiscard]] int row() const { return row_; }
  [[nodiscard]] int column() const { return column_; }

 private:
  int row_;
  int column_;
};

/// A schedule that must not run. `rank` and `step` (slot in the rank's row), counted from 0, point at the faulty
/// action; `step` is -1 when an action is missing.
class ScheduleError : public Error {
 public:
  ScheduleError(const std::string& message, RankId rank, int step, std::string action)
      : Error(message), rank_(rank), step_(step), action_(std::move(action)) {}
  [[nodiscard]] RankId rank() const { return rank_; }
  [[nodiscard]] int step() const { return step_; }
  [[nodiscard]] const std::string& action() const { return action_; }

 private:
  RankId rank_;
  int step_;
  std::string action_;
};

/// An action of a step failed. The message holds the cause and an excerpt of the schedule around the action.
class StepError : public Error {
 public:
  StepError(const std::string& message, RankId rank, std::string action)
      : Error(message), rank_(rank), action_(std::move(action)) {}
  [[nodiscard]] RankId rank() const { return rank_; }
  [[nodiscard]] const std::string& action() const { return action_; }

 private:
  RankId rank_;
  std::string action_;
};

/// What an error also is if somebody ends the program by it, such as Ctrl-C in Python: nobody tries again.
class Interruption {
 public:
  virtual ~Interruption() = default;
};
/// Whether the error, or one that is nested in it, is one.
[[nodiscard]] bool is_interruption(const std::exception_ptr& error);

/// A tensor is not what an edge or a stage expects.
class ShapeError : public Error {
 public:
  ShapeError(const std::string& message, StageId stage) : Error(message), stage_(stage) {}
  [[nodiscard]] StageId stage() const { return stage_; }

 private:
  StageId stage_;
};

/// A message between ranks could not be exchanged.
class TransportError : public Error {
 public:
  TransportError(const std::string& message, RankId peer) : Error(message), peer_(peer) {}
  [[nodiscard]] RankId peer() const { return peer_; }

 private:
  RankId peer_;
};

/// A wait exceeded its time limit. The message says what was awaited, and from which rank.
class TimeoutError : public TransportError {
 public:
  using TransportError::TransportError;
};

/// Another rank failed, so this one had to stop. `peer` is the failed rank; the message is that rank's error.
class AbortedError : public TransportError {
 public:
  using TransportError::TransportError;
};

/// A file cannot be read or written, or its contents are invalid. The message begins with the path. A file that was to
/// be replaced is unchanged.
class FileError : public Error {
 public:
  FileError(const std::string& path, const std::string& message) : Error(path + ": " + message), path_(path) {}
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A broken invariant of Stagecraft itself: please report it.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace stagecraft
