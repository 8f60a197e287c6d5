#include "stagecraft/file/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "stagecraft/core/error.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace stagecraft::npy {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

/// A file of version `major` with this dict as its header, and so many bytes of data.
std::string array(const std::string& dict, std::size_t data, char major = 1) {
  const std::string header = dict + "\n";
  std::string file = std::string("\x93NUMPY") + major + '\0';
  for (std::size_t i = 0; i < (major == 1 ? 2U : 4U); ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return file + header + std::string(data, '\1');
}
std::string dict(const std::string& descr, const std::string& shape, const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

Header parsed_array(const std::string& file) { return Header::parse(file, file.size(), "a.npy"); }
std::string fault_of(const std::string& file) {
  return message_of([&] { parsed_array(file); });
}

TEST(NpyHeader, WhatItSays) {
  for (const char major : {1, 2, 3}) {
    const std::string file = array(dict("<f4", "(2, 3)") + "      ", 24, major);
    const Header header = parsed_array(file);
    EXPECT_EQ(header.text(), "F32 [2, 3]");
    EXPECT_EQ(header.bytes, 24U);
    EXPECT_EQ(header.begin, file.size() - 24);
  }
  EXPECT_EQ(parsed_array(array(dict("<u2", "(5,)"), 10)).text(), "U16 [5]");
  EXPECT_EQ(parsed_array(array(dict("<i8", "()"), 8)).text(), "I64 []");
  EXPECT_EQ(parsed_array(array(dict("|u1", "(0, 7)"), 0)).text(), "U8 [0, 7]");
  EXPECT_EQ(parsed_array(array(dict("|b1", "(1,)"), 1)).text(), "BOOL [1]");
  EXPECT_EQ(parsed_array(array(dict("<f2", "(3,)", "True"), 6)).text(), "F16 [3]") << "one dimension has no order";
  EXPECT_EQ(parsed_array(array(R"({"shape":(1,),"descr":"<c8","fortran_order":False})", 8)).text(), "C64 [1]");
}

TEST(NpyHeader, OtherKindsOfFile) {
  EXPECT_THAT(fault_of(""), AllOf(StartsWith("a.npy: "), HasSubstr("does not begin like a .npy file")));
  EXPECT_THAT(fault_of("PK\3\4"), HasSubstr("does not begin like a .npy file"));
  EXPECT_THAT(fault_of("\x93NUMPY"), HasSubstr("ends in its header, after 6 bytes"));
  EXPECT_THAT(fault_of(array(dict("<f4", "(1,)"), 4, 4)), HasSubstr("version 4.0"));
  EXPECT_THAT(fault_of(array(dict("<f4", "(1,)"), 4).substr(0, 30)), HasSubstr("but the file has only 30"));
  std::string huge = array(dict("<f4", "(1,)"), 4, 2);
  std::memset(huge.data() + 8, 0xFF, 4);
  EXPECT_THAT(fault_of(huge), HasSubstr("its header would have 4294967295 bytes"));
}

TEST(NpyHeader, Elements) {
  EXPECT_THAT(fault_of(array(dict(">u2", "(5,)"), 10)),
              AllOf(HasSubstr("big-endian"), HasSubstr("array.astype('<u2')")));
  EXPECT_THAT(fault_of(array(dict("|O", "(5,)"), 10)), HasSubstr("'|O', which is not supported"));
  EXPECT_THAT(fault_of(array(dict("<U4", "(5,)"), 80)), HasSubstr("'<U4'"));
  EXPECT_THAT(fault_of(array(dict("", "(5,)"), 80)), HasSubstr("''"));
  EXPECT_THAT(fault_of(array("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4)),
              HasSubstr("records with fields"));
  EXPECT_THAT(fault_of(array(dict("<f4", "(2, 3)", "True"), 24)),
              AllOf(HasSubstr("Fortran order"), HasSubstr("ascontiguousarray")));
}

TEST(NpyHeader, Sizes) {
  EXPECT_THAT(fault_of(array(dict("<f4", "(2, 3)"), 23)),
              HasSubstr("F32 [2, 3] takes 24 bytes, but the file holds only 23"));
  EXPECT_THAT(fault_of(array(dict("<f4", "(2, 3)"), 25)), HasSubstr("holds 25: save one array per file"));
  EXPECT_THAT(fault_of(array(dict("<f4", "(4611686018427387904, 4)"), 16)), HasSubstr("too many bytes"));
  EXPECT_THAT(fault_of(array(dict("<f4", "(99999999999999999999,)"), 16)), HasSubstr("its shape has no size at"));
  EXPECT_THAT(fault_of(array(dict("<f4", "(-1,)"), 16)), HasSubstr("its shape has no size at"));
}

TEST(NpyHeader, NoDict) {
  for (const std::string text :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': no, 'shape': (1,), }",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (1,), }", "{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1"}) {
    EXPECT_THAT(fault_of(array(text, 4)), HasSubstr("its header is not one of numpy.save")) << text;
  }
}

TEST(Npy, ReadsParts) {
  const ScratchFolder folder;
  const std::string path = folder.path("a.npy");
  folder.write("a.npy", array(dict("|u1", "(2, 3)"), 0) + "abcdef");
  const Reader reader(path);
  std::string some(3, '\0');
  reader.read(2, some.data(), 3);
  EXPECT_EQ(some, "cde");
  EXPECT_THAT(reader.header().shape, ElementsAre(2, 3));
  EXPECT_THAT(message_of([&] { reader.read(4, some.data(), 3); }), HasSubstr("are asked for"));
  folder.write("a.npy", "short");
  EXPECT_THAT(message_of([&] { reader.read(0, some.data(), 3); }),
              AllOf(HasSubstr("there are only 5"), HasSubstr("shorter while it was read")));
}

}  // namespace
}  // namespace stagecraft::npy
