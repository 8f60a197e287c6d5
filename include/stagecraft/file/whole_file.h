#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// Files that appear complete or not at all.
namespace stagecraft {

/// The error text of an errno, with the remedy: "cannot write it: No space left on device: free some space, or ...".
std::string cannot_write(int error);

/// Writes a temporary file and renames it on `commit`. The temporary file is in the same folder, with a hidden name
/// (.stagecraft- and six letters), and is removed on destruction. An existing file stays unchanged until `commit`
/// succeeds. A killed process leaves the temporary file behind; it can be deleted.
///
/// Follows symbolic links. Keeps the mode and, if permitted, the owner of a file that it replaces.
class WholeFile {
 public:
  /// Throws FileError when a file of that name cannot be created, or when it exists and is not writable.
  explicit WholeFile(std::string path);
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  ~WholeFile();

  /// The path given to the constructor.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// The path of the temporary file; empty after `commit`.
  [[nodiscard]] const std::string& hidden_path() const { return hidden_; }
  [[nodiscard]] int fd() const { return fd_; }

  /// Appends. Throws FileError, on a full disk at the first byte that does not fit.
  void write(const void* bytes, std::size_t size);
  /// Overwrites bytes that were written before. Throws FileError.
  void write_at(std::uint64_t offset, const void* bytes, std::size_t size);
  /// Syncs and closes the temporary file; nothing more can be written. Throws FileError.
  void finish();
  /// Calls `finish` and renames the temporary file to its target. Throws FileError; the target is then unchanged.
  void commit();

 private:
  void create();

  std::string path_;
  std::string target_;  // path_ with symbolic links followed
  std::string hidden_;  // temporary file; empty after commit
  int fd_ = -1;
  std::size_t unsynced_ = 0;
};

}  // namespace stagecraft
