#pragma once

namespace stagecraft {

/// While it lives, this thread may neither send nor receive, nor take part in a collective: such a call throws
/// InvalidArgument with `why`, and changes nothing. For captures, which other ranks may not be doing at the same time.
class NoMessages {
 public:
  explicit NoMessages(const char* why);
  ~NoMessages();
  NoMessages(const NoMessages&) = delete;
  NoMessages& operator=(const NoMessages&) = delete;

  /// Throws if there is one on this thread.
  static void check();

 private:
  const char* before_;
};

}  // namespace stagecraft
