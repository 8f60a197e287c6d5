#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// Files that appear whole or not at all.
namespace stagecraft {

/// "cannot write it: No space left on device: free some space, or choose another place": for an errno, with the remedy.
std::string cannot_write(int error);

/// A new file on its way to its place. It is written beside it under a hidden name (.stagecraft- and six letters), and
/// disappears with the object; `commit` moves it there instead. Until then, and whatever happens, what was there stays
/// as it was. A process that is killed leaves the hidden file behind, which may be deleted.
///
/// Symbolic links are followed; the mode and, where it is allowed, the owner of a file that is replaced are taken over.
class WholeFile {
 public:
  /// Throws FileError when there cannot be a file of that name, or when there is one that must not be written.
  explicit WholeFile(std::string path);
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  ~WholeFile();

  /// As given.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Where it is until it is committed.
  [[nodiscard]] const std::string& hidden_path() const { return hidden_; }
  [[nodiscard]] int fd() const { return fd_; }

  /// Appends. Throws FileError, on a full disk at the first byte that does not fit.
  void write(const void* bytes, std::size_t size);
  /// Overwrites bytes that were written before. Throws FileError.
  void write_at(std::uint64_t offset, const void* bytes, std::size_t size);
  /// Everything is on the disk, and nothing more can be written. Throws FileError.
  void finish();
  /// Finishes it and moves it over its place. Throws FileError, and then the place is untouched.
  void commit();

 private:
  void create();

  std::string path_;
  std::string target_;  // where the links lead
  std::string hidden_;  // empty once it is moved
  int fd_ = -1;
  std::size_t unsynced_ = 0;
};

}  // namespace stagecraft
