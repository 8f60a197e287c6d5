#include "stagecraft/file/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "support/message_of.h"
#include "support/zip_bytes.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

ZipArchive archive(const std::string& bytes) { return ZipArchive(bytes_in_memory("a.zip", bytes)); }

std::string refusal(const std::string& bytes) {
  return message_of([&] { archive(bytes); });
}

std::string two_records(bool wide = false) {
  return ZipBytes(wide).add({"b/second", "world"}).add({"a/first", "hello there"}).finish();
}

TEST(Zip, ReadsRecords) {
  for (const bool wide : {false, true}) {
    const ZipArchive zip = archive(two_records(wide));
    EXPECT_EQ(zip.name(), "a.zip");
    EXPECT_THAT(zip.records(), ElementsAre("a/first", "b/second"));
    EXPECT_EQ(zip.size("a/first"), 11U);
    EXPECT_EQ(zip.read_text("b/second"), "world");
    std::string part(5, ' ');
    zip.read("a/first", 6, part.data(), part.size());
    EXPECT_EQ(part, "there");
    EXPECT_FALSE(zip.contains("first"));
  }
}

TEST(Zip, ReadsAnEmptyArchiveAndEmptyRecords) {
  EXPECT_TRUE(archive(ZipBytes().finish()).records().empty());
  EXPECT_EQ(archive(ZipBytes().add({"empty", ""}).finish()).read_text("empty"), "");
}

TEST(Zip, FindsTheEndBehindAComment) {
  const std::string fake = std::string("PK\x05\x06") + "not the end";
  EXPECT_EQ(archive(ZipBytes().add({"a", "x"}).finish(fake)).read_text("a"), "x");
}

TEST(Zip, RefusesWhatIsNotThere) {
  const ZipArchive zip = archive(two_records());
  EXPECT_THAT(message_of([&] { static_cast<void>(zip.size("c")); }),
              AllOf(StartsWith("a.zip: "), HasSubstr("no record 'c'")));
  char byte = 0;
  EXPECT_THAT(message_of([&] { zip.read("b/second", 5, &byte, 1); }), HasSubstr("has 5 bytes, too few"));
  EXPECT_THAT(message_of([&] { zip.read("b/second", ~std::uint64_t{0}, &byte, 1); }), HasSubstr("too few"));
  EXPECT_THAT(message_of([&] { static_cast<void>(zip.read_text("a/first", 10)); }), HasSubstr("more than the 10"));
}

TEST(Zip, RefusesOtherFiles) {
  EXPECT_THAT(refusal(""), HasSubstr("only 0 bytes"));
  EXPECT_THAT(refusal(std::string(1000, 'x')), HasSubstr("its end is missing"));
}

TEST(Zip, RefusesEveryBeginningOfAnArchive) {
  for (const bool wide : {false, true}) {
    const std::string whole = two_records(wide);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_THAT(refusal(whole.substr(0, size)), StartsWith("a.zip: not a zip archive that can be read: ")) << size;
    }
  }
}

TEST(Zip, RefusesOrReadsEveryChangedByte) {
  const std::string whole = two_records(true);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char value : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string changed = whole;
      changed[at] = value;
      try {
        const ZipArchive zip = archive(changed);
        for (const std::string& record : zip.records()) static_cast<void>(zip.read_text(record));
      } catch (const FileError&) {
        continue;
      }
    }
  }
}

TEST(Zip, RefusesRecordsThatCannotBeRead) {
  EXPECT_THAT(refusal(ZipBytes().add({"a", "x", 8}).finish()), HasSubstr("record 'a' is compressed: save it without"));
  EXPECT_THAT(refusal(ZipBytes().add({"a", "x", 0, 1}).finish()), HasSubstr("record 'a' is encrypted"));
  EXPECT_THAT(refusal(ZipBytes().add({"a", "x"}).add({"a", "y"}).finish()), HasSubstr("two records called 'a'"));
}

TEST(Bytes, RefuseWhatIsNoFile) {
  EXPECT_THAT(message_of([] { open_file("/no/such/file"); }), HasSubstr("cannot read it: No such file"));
  EXPECT_THAT(message_of([] { open_file("/"); }), HasSubstr("it is no ordinary file"));
  EXPECT_THAT(message_of([] { open_file(""); }), StartsWith("'': "));
}

}  // namespace
}  // namespace stagecraft
