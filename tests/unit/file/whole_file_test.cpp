#include "stagecraft/file/whole_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "stagecraft/core/error.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void write_text(WholeFile& file, const std::string& text) { file.write(text.data(), text.size()); }

TEST(WholeFile, AppearsWithCommitAndNotBefore) {
  const ScratchFolder folder;
  {
    WholeFile file(folder.path("new"));
    write_text(file, "half ");
    EXPECT_FALSE(folder.has("new"));
    write_text(file, "and half");
    file.commit();
    EXPECT_EQ(folder.text("new"), "half and half");
  }
  EXPECT_THAT(folder.names(), ElementsAre("new"));
}

TEST(WholeFile, WithoutCommitNothingChanges) {
  const ScratchFolder folder;
  folder.write("kept", "old");
  {
    WholeFile file(folder.path("kept"));
    write_text(file, "new");
    file.finish();
  }
  EXPECT_EQ(folder.text("kept"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("kept"));
}

TEST(WholeFile, TakesOverTheModeAndFollowsLinks) {
  const ScratchFolder folder;
  folder.write("target", "old");
  ::chmod(folder.path("target").c_str(), 0640);
  ASSERT_EQ(::symlink("target", folder.path("link").c_str()), 0);
  WholeFile file(folder.path("link"));
  write_text(file, "new");
  file.commit();
  EXPECT_EQ(folder.text("target"), "new");
  struct stat status {};
  ASSERT_EQ(::stat(folder.path("target").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
  ASSERT_EQ(::lstat(folder.path("link").c_str(), &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
}

TEST(WholeFile, NewFilesFollowTheUmask) {
  const ScratchFolder folder;
  const mode_t before = ::umask(027);
  WholeFile file(folder.path("new"));
  ::umask(before);
  file.commit();
  struct stat status {};
  ASSERT_EQ(::stat(folder.path("new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
}

TEST(WholeFile, PlacesThatCannotBe) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("fifo").c_str(), 0600), 0);
  const auto message = [&](const std::string& path) { return message_of([&] { const WholeFile file(path); }); };
  EXPECT_THAT(message(folder.path("no/such")), AllOf(HasSubstr("No such file"), HasSubstr("create its folder first")));
  EXPECT_THAT(message(folder.path("")), HasSubstr("Is a directory"));
  EXPECT_THAT(message(""), HasSubstr("'': cannot write it"));
  EXPECT_THAT(message(folder.path("fifo")), HasSubstr("it is no ordinary file"));
  EXPECT_THAT(folder.names(), ElementsAre("fifo"));
}

/// How a child process ends that runs `work`.
template <typename Work>
int ended_in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(WholeFile, AKilledProcessLeavesTheOldFileWhole) {
  const ScratchFolder folder;
  folder.write("kept", "old");
  const int status = ended_in_child([&] {
    WholeFile file(folder.path("kept"));
    write_text(file, "new, cut o");
    ::raise(SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(folder.text("kept"), "old");
  WholeFile again(folder.path("kept"));
  write_text(again, "new");
  again.commit();
  EXPECT_EQ(folder.text("kept"), "new");
}

TEST(WholeFile, AFullDiskIsAnErrorAndLeavesTheOldFileWhole) {
  const ScratchFolder folder;
  folder.write("kept", "old");
  const int status = ended_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};  // what a full disk does, without one
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = message_of([&] {
      WholeFile file(folder.path("kept"));
      for (int i = 0; i < 100; ++i) write_text(file, std::string(10'000, 'x'));
      file.commit();
    });
    ::_exit(message.find("kept: cannot write it: File too large: free some space") != std::string::npos ? 7 : 8);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(folder.text("kept"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("kept"));
}

}  // namespace
}  // namespace stagecraft
