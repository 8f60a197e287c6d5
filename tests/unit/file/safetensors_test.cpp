#include "stagecraft/file/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <sstream>

#include "stagecraft/core/error.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace stagecraft::safetensors {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::StartsWith;

std::string braces(const std::string& text) { return std::string("{").append(text).append("}"); }

/// A file in memory: a header and so many bytes of data.
std::string file_of(const std::string& json, std::size_t data, std::uint64_t length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + json + std::string(data, '\1');
}
std::string file_of(const std::string& json, std::size_t data) { return file_of(json, data, json.size()); }

Header parsed(const std::string& file) { return Header::parse(file, file.size(), "f.safetensors"); }
std::string fault(const std::string& file) {
  return message_of([&] { parsed(file); });
}
std::string fault(const std::string& json, std::size_t data) { return fault(file_of(json, data)); }

TEST(SafetensorsHeader, WhatItSays) {
  const std::string json = R"({"__metadata__":{"step":"3"},"b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
                           R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24],"more":{"x":[{}, 1]}},)"
                           R"("none":{"dtype":"I64","shape":[0,5],"data_offsets":[24,24]}}   )";
  const Header header = parsed(file_of(json, 26));
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].text(), "F32 [2, 3]");
  EXPECT_EQ(header.entries[0].begin, 8 + json.size());
  EXPECT_EQ(header.entries[0].bytes, 24U);
  EXPECT_EQ(header.entries[1].name, "none");
  EXPECT_EQ(header.entries[2].text(), "BF16 []");
  EXPECT_THAT(header.metadata, ElementsAre(Pair("step", "3")));
  EXPECT_TRUE(parsed(file_of("{}", 0)).entries.empty());
}

TEST(SafetensorsHeader, LengthsThatLie) {
  EXPECT_THAT(fault(""), AllOf(StartsWith("f.safetensors: not a sound safetensors file"), HasSubstr("it has 0 bytes")));
  EXPECT_THAT(fault("1234567"), HasSubstr("it has 7 bytes"));
  EXPECT_THAT(fault(file_of("{}", 0, 3)), HasSubstr("its header would have 3 bytes, but the file ends 2 after"));
  EXPECT_THAT(fault(file_of("{}", 0, ~std::uint64_t{0})), HasSubstr("would have 18446744073709551615 bytes, and may"));
  EXPECT_THAT(fault(file_of("{}", 0, 0)), HasSubstr("does not begin with {"));
  EXPECT_THAT(fault(" {}", 0), HasSubstr("does not begin with {"));
}

TEST(SafetensorsHeader, NotJson) {
  EXPECT_THAT(fault("{\"a\":", 0), HasSubstr("the header is not JSON at its byte"));
  EXPECT_THAT(fault(R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}})", 4),
              AllOf(HasSubstr("number overflow"), Not(HasSubstr("json.exception"))));
  for (const int levels : {10'000, 3'000'000}) {  // nothing is kept of what nobody knows
    const std::string lists(static_cast<std::size_t>(levels), '[');
    EXPECT_THAT(fault("{\"a\":{\"dtype\":\"F32\",\"extra\":" + lists, 0), HasSubstr("the header is not JSON"));
  }
  EXPECT_THAT(fault("{} {}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(fault("{\"\xff\":1}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(fault(std::string("{}\0", 3), 0), HasSubstr("not JSON"));
}

TEST(SafetensorsHeader, FaultsOfOneTensor) {
  const auto of = [](const std::string& fields, std::size_t data = 8) {
    return fault(braces("\"a\":" + fields), data);
  };
  EXPECT_THAT(of("7"), HasSubstr("tensor 'a' is 7, not an object"));
  EXPECT_THAT(of("[]"), HasSubstr("tensor 'a' is a list, not an object"));
  EXPECT_THAT(of("{}"),
              AllOf(HasSubstr("'a': it has no dtype; "), HasSubstr("no shape"), HasSubstr("no data_offsets")));
  EXPECT_THAT(of(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), HasSubstr("dtype is 1, not a text"));
  EXPECT_THAT(of(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), HasSubstr("dtype 'F33' is not known"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), HasSubstr("shape holds -2, not a list"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), HasSubstr("shape holds '2.0'"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"), HasSubstr("shape holds a list"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})"), HasSubstr("shape holds a text"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), HasSubstr("data_offsets are [0], not a"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), HasSubstr("data_offsets are [8, 0], not a"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[2],"data_offsets":[0,9]})"), HasSubstr("beyond the data of 8 bytes"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
              HasSubstr("F32 [3] takes 12 bytes, but data_offsets [0, 8] hold 8"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,8]})"), HasSubstr("uncountable"));
  EXPECT_THAT(of(R"({"dtype":"U8","shape":[18446744073709551615,8],"data_offsets":[0,8]})"), HasSubstr("uncountable"));
  EXPECT_THAT(of(R"({"dtype":"F4","shape":[15],"data_offsets":[0,8]})"), HasSubstr("uncountable"));
  EXPECT_THAT(of(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"),
              HasSubstr("tensor 'a': 'shape' is there twice"));
  EXPECT_THAT(fault(R"({"__metadata__":{"step":3}})", 0), HasSubstr("__metadata__: 'step' is 3, not a text"));
}

std::string u8(const std::string& name, int begin, int end) {
  std::ostringstream text;
  text << '"' << name << R"(":{"dtype":"U8","shape":[)" << end - begin << R"(],"data_offsets":[)" << begin << ',' << end
       << "]}";
  return text.str();
}

TEST(SafetensorsHeader, TensorsThatDoNotFillTheData) {
  EXPECT_THAT(fault(braces(u8("a", 0, 4) + "," + u8("b", 3, 8)), 8), HasSubstr("tensors 'a' and 'b' share bytes"));
  EXPECT_THAT(fault(braces(u8("a", 0, 8) + "," + u8("b", 2, 4) + "," + u8("c", 6, 8)), 8),
              AllOf(HasSubstr("'a' and 'b' share"), HasSubstr("'a' and 'c' share")));
  EXPECT_THAT(fault(braces(u8("a", 0, 4) + "," + u8("b", 5, 8)), 8), HasSubstr("1 bytes before tensor 'b' belong"));
  EXPECT_THAT(fault(braces(u8("a", 0, 4)), 8), HasSubstr("4 bytes at the end belong to no tensor"));
  EXPECT_THAT(fault(braces(u8("a", 0, 4) + "," + u8("a", 4, 8)), 8), HasSubstr("'a' is there twice"));
}

TEST(SafetensorsHeader, AllFaultsAtOnceUpToAPoint) {
  std::string json = "{\"x\":1";
  for (int i = 0; i < 30; ++i) json += ",\"t" + std::to_string(i) + "\":2";
  EXPECT_THAT(fault(json + "}", 0), AllOf(HasSubstr("'x' is 1"), HasSubstr("'t18' is 2"), Not(HasSubstr("'t19'")),
                                          HasSubstr("; and 11 more"), Not(HasSubstr("\n"))));
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const ScratchFolder folder;
  const std::string path = folder.path("w.safetensors");
  std::vector<float> numbers(6);
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  const std::uint8_t flag = 1;
  {
    Writer writer(path, {{"flag \"q\" \n ä", "BOOL", {}}, {"none", "F32", {0, 3}}, {"numbers", "F32", {2, 3}}},
                  {{"step", "12"}, {"note", "a\"b"}});
    for (const Entry& entry : writer.entries()) {
      if (entry.name == "numbers") {
        writer.write(entry, numbers.data(), 10);
        writer.write(entry, reinterpret_cast<const char*>(numbers.data()) + 10, 14);
      } else if (entry.bytes > 0) {
        writer.write(entry, &flag, 1);
      }
    }
    EXPECT_FALSE(folder.has("w.safetensors"));
    writer.commit();
  }
  const Reader reader(path);
  EXPECT_THAT(reader.metadata(), ElementsAre(Pair("note", "a\"b"), Pair("step", "12")));
  ASSERT_EQ(reader.entries().size(), 3U);
  const Entry* entry = reader.find("numbers");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->begin % 8, 0U) << "aligned";
  std::vector<float> some(2);
  reader.read(*entry, 12, some.data(), 8);
  EXPECT_THAT(some, ElementsAre(4, 5));
  EXPECT_THAT(message_of([&] { reader.read(*entry, 20, some.data(), 8); }), HasSubstr("cannot read 8 from byte 20"));
  EXPECT_EQ(reader.find("number"), nullptr);
  EXPECT_NE(reader.find("flag \"q\" \n ä"), nullptr);
}

TEST(Safetensors, WriterKeepsToWhatWasAnnounced) {
  const ScratchFolder folder;
  const std::string path = folder.path("w");
  folder.write("w", "old");
  const auto message = [&](std::vector<Entry> entries) { return message_of([&] { const Writer w(path, entries); }); };
  EXPECT_THAT(message({{"a", "F32", {1}}, {"a", "F32", {1}}}), HasSubstr("two tensors 'a'"));
  EXPECT_THAT(message({{"__metadata__", "F32", {1}}}), HasSubstr("two tensors '__metadata__'"));
  EXPECT_THAT(message({{"a", "F31", {1}}}), HasSubstr("cannot have F31 [1]"));
  EXPECT_THAT(message({{"a", "F32", {-1}}}), HasSubstr("cannot have F32 [-1]"));
  EXPECT_THAT(message({{"\xff", "F32", {1}}}), HasSubstr("is not UTF-8"));
  {
    Writer writer(path, {{"a", "U8", {2}}, {"b", "U8", {1}}});
    EXPECT_THAT(message_of([&] { writer.write(writer.entries()[1], "x", 1); }),
                HasSubstr("not the turn of tensor 'b'"));
    EXPECT_THAT(message_of([&] { writer.write(writer.entries()[0], "xyz", 3); }), HasSubstr("got 1 more"));
    writer.write(writer.entries()[0], "xy", 2);
    EXPECT_THAT(message_of([&] { writer.commit(); }), HasSubstr("tensor 'b' is not written: 0 of 1 bytes"));
  }
  EXPECT_EQ(folder.text("w"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("w"));
}

constexpr const char* kNothing = "nothing was thrown";

/// A file with three tensors and metadata, as its bytes.
std::string written(const ScratchFolder& folder) {
  const std::string path = folder.path("sums");
  Writer writer(path, {{"a", "F32", {50, 100}}, {"b", "U8", {7}}, {"none", "F32", {0}}}, {{"step", "12"}});
  for (const Entry& entry : writer.entries()) {
    std::string data(entry.bytes, '\0');
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + entry.name[0]);
    writer.write(entry, data.data(), data.size() / 3);
    writer.write(entry, data.data() + data.size() / 3, data.size() - data.size() / 3);
  }
  writer.commit();
  return folder.text("sums");
}

/// Reads everything that is in the file.
std::string read_all(const ScratchFolder& folder, const std::string& bytes) {
  folder.write("changed", bytes);
  return message_of([&] {
    const Reader reader(folder.path("changed"));
    for (const Entry& entry : reader.entries()) {
      std::string data(entry.bytes, '\0');
      reader.read(entry, 0, data.data(), data.size());
    }
  });
}

TEST(SafetensorsChecksums, EveryFlippedBitOfTheDataIsRefused) {
  const ScratchFolder folder;
  const std::string good = written(folder);
  const Reader reader(folder.path("sums"));
  EXPECT_THAT(reader.metadata(), ElementsAre(Pair("step", "12"))) << "checksums are not the user's";
  for (const Entry& entry : reader.entries()) EXPECT_TRUE(entry.checksum) << entry.name;
  const std::size_t begin = reader.entries().front().begin;
  const auto seed = std::random_device()();
  std::mt19937 random(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t at = begin + random() % (good.size() - begin);
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    EXPECT_THAT(read_all(folder, bytes), AllOf(HasSubstr("/changed: tensor '"), HasSubstr("' is damaged"),
                                               HasSubstr("checksum"), HasSubstr("fetch the file again")))
        << "byte " << at << ", seed " << seed;
  }
}

TEST(SafetensorsChecksums, EveryFlippedBitOfTheHeaderIsRefused) {
  const ScratchFolder folder;
  const std::string good = written(folder);
  const std::size_t begin = Reader(folder.path("sums")).entries().front().begin;
  for (std::size_t bit = 0; bit < 8 * begin; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(message_of([&] { parsed(bytes); }), kNothing) << "byte " << bit / 8 << " '" << good[bit / 8] << "'";
  }
}

TEST(SafetensorsChecksums, EveryCutFileIsRefused) {
  const ScratchFolder folder;
  const std::string good = written(folder);
  for (std::size_t size = 0; size < good.size(); size += size < 1000 ? 1 : 97) {
    EXPECT_NE(message_of([&] { parsed(good.substr(0, size)); }), kNothing) << size;
  }
}

TEST(SafetensorsChecksums, AFileWithoutThemIsRead) {
  const std::string json = braces(u8("a", 0, 4));
  const ScratchFolder folder;
  EXPECT_EQ(read_all(folder, file_of(json, 4)), kNothing);
  EXPECT_FALSE(parsed(file_of(json, 4)).entries[0].checksum);
}

TEST(SafetensorsChecksums, ThoseThatDoNotFitTheFile) {
  const auto with = [](const std::string& metadata) {
    return fault(braces("\"__metadata__\":" + braces(metadata) + "," + u8("a", 0, 4)), 4);
  };
  const std::string sum = "\"0123456789abcdef\"";
  EXPECT_THAT(with("\"stagecraft.xxh64.a\":" + sum), HasSubstr("but it says none"));
  EXPECT_THAT(with("\"stagecraft.xxh64\":" + sum), HasSubstr("tensor 'a' has no checksum"));
  EXPECT_THAT(with("\"stagecraft.xxh64.a\":\"12\""), HasSubstr("checksum '12', which is not 16"));
  EXPECT_THAT(with("\"stagecraft.xxh64.a\":\"0123456789ABCDEF\""), HasSubstr("which is not 16"));
  EXPECT_THAT(with("\"stagecraft.xxh64.a\":" + sum + ",\"stagecraft.xxh64.b\":" + sum),
              AllOf(HasSubstr("a checksum of 'b', but no such tensor"), HasSubstr("leaves out its metadata")));
  EXPECT_THAT(with("\"stagecraft.xxh64.a\":" + sum + ",\"stagecraft.xxh64\":" + sum), HasSubstr("it is damaged"));
  const ScratchFolder folder;
  EXPECT_THAT(message_of([&] {
                const Writer w(folder.path("w"), {}, {{"stagecraft.xxh64.x", "1"}});
              }),
              HasSubstr("has the name of a checksum"));
}

TEST(SafetensorsChecksums, APartIsReadWithoutAndTheWholeCanBeChecked) {
  const ScratchFolder folder;
  std::string bytes = written(folder);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // of "b"
  folder.write("changed", bytes);
  const Reader reader(folder.path("changed"));
  char byte = 0;
  EXPECT_NO_THROW(reader.read(*reader.find("b"), 0, &byte, 1));
  EXPECT_THROW(reader.check(*reader.find("b")), ChecksumError);
  EXPECT_NO_THROW(reader.check(*reader.find("a")));
  EXPECT_NO_THROW(reader.check(*reader.find("none")));
}

TEST(Safetensors, FilesThatCannotBeRead) {
  const ScratchFolder folder;
  const auto message = [&](const std::string& path) { return message_of([&] { const Reader reader(path); }); };
  EXPECT_THAT(message(folder.path("none")), HasSubstr("none: cannot read it: No such file"));
  EXPECT_THAT(message(folder.path("")), HasSubstr("no ordinary file"));
  folder.write("cut", file_of(braces(u8("a", 0, 8)), 8).substr(0, 65));
  EXPECT_THAT(message(folder.path("cut")), HasSubstr("reach beyond the data"));
  folder.write("text", "hello, this is not such a file at all");
  EXPECT_THAT(message(folder.path("text")), HasSubstr("and may have 100000000"));
}

}  // namespace
}  // namespace stagecraft::safetensors
