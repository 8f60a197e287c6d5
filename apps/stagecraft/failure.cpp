#include "failure.h"

#include <unistd.h>

#include <new>

#include <fmt/format.h>

#include "report_text.h"
#include "stagecraft/core/error.h"

namespace stagecraft::cli {
namespace {

constexpr std::string_view kPleaseReport =
    "this is a bug in stagecraft, please report it with the command and its input";

void write_all(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;  // nothing else to report to
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string with_subject(const std::string& subject, std::string_view message) {
  return subject.empty() ? std::string(message) : fmt::format("{}: {}", subject, message);
}

/// Splits a message of the library: the first line is the error, the rest are details.
Failure split_lines(ExitCode code, const std::string& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return {code, text};
  std::string details = text.substr(end + 1);
  if (!details.ends_with('\n')) details += '\n';
  return {code, text.substr(0, end), std::move(details)};
}

Failure bug(const std::string& subject, std::string_view what) {
  return {kInternal, with_subject(subject, fmt::format("{}: {}", what, kPleaseReport))};
}

}  // namespace

Failure current_failure(const std::string& subject) {
  try {
    throw;
  } catch (const Failure& failure) {
    return failure;
  } catch (const ScheduleError& error) {
    return split_lines(kRefused, located(subject, error.rank(), error.step(), error.what()));
  } catch (const InternalError& error) {
    return bug(subject, error.what());
  } catch (const FileError& error) {  // always one line, which begins with the path
    return {kUnusable, error.what()};
  } catch (const Error& error) {  // InvalidArgument, ParseError: the message already has the position
    return split_lines(kUnusable, with_subject(subject, error.what()));
  } catch (const std::bad_alloc&) {
    throw;  // there may be no memory for a message
  } catch (const std::exception& error) {
    return bug(subject, error.what());
  }
}

std::string located(std::string_view subject, RankId rank, int step, std::string_view message) {
  std::string line(subject);
  if (!line.empty()) line += ": ";
  if (step >= 0) line += fmt::format("row {}, column {}: ", rank.value + 1, step + 1);
  line += message;
  return line;
}

Failure refused(std::string_view subject, const Refusal& refusal) {
  std::string details = refusal.full_text();
  if (details.starts_with(refusal.message)) details.erase(0, refusal.message.size());
  details.erase(0, details.find_first_not_of('\n'));
  if (!details.empty() && !details.ends_with('\n')) details += '\n';
  return {kRefused, located(subject, refusal.rank, refusal.step, refusal.message), std::move(details)};
}

void print_error(std::string_view line, std::string_view details) noexcept {
  try {
    std::string text = fmt::format("stagecraft: {}\n", printable(line));
    text += details;
    write_all(text);
  } catch (...) {  // no memory for formatting
    write_all("stagecraft: ");
    write_all(line);
    write_all("\n");
  }
}

int report_exception(const std::string& subject) noexcept {
  try {
    const Failure failure = current_failure(subject);
    print_error(failure.what(), failure.details());
    return failure.code();
  } catch (const std::bad_alloc&) {
    write_all("stagecraft: not enough memory: use fewer ranks, stages or microbatches, or a smaller model\n");
    return kUnusable;
  } catch (...) {
    print_error(kPleaseReport);
    return kInternal;
  }
}

}  // namespace stagecraft::cli
