// Whole files, read and written.

#include <filesystem>

#include "functions.h"
#include "stagecraft/core/text.h"
#include "stagecraft/file/bytes.h"
#include "stagecraft/file/whole_file.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft::python {

Object schedule_read(const Arguments& args) {
  const std::string path = args.path(0, "path");
  return wrapped(without_gil([&] {
    constexpr std::uint64_t kBlock = 1 << 16;
    const auto file = open_file(path);
    CsvReader reader;
    std::string block;
    for (std::uint64_t at = 0; at < file->size(); at += block.size()) {
      block.resize(std::min(kBlock, file->size() - at));
      file->read(at, block.data(), block.size());
      reader.feed(block);  // refuses a file that is no schedule at its first bad cell
    }
    std::vector<Row> rows = reader.finish();
    if (rows.empty()) throw FileError(path, "it has no rows: a schedule has one line per rank, such as 0F0,0B0");
    return Schedule::from_rows(std::move(rows), cli::printable(std::filesystem::path(path).stem().string()));
  }));
}

Object read_file(const Arguments& args) {
  const std::string path = args.path(0, "path");
  const std::string bytes = without_gil([&] {
    constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
    const auto file = open_file(path);
    if (file->size() > kMost) throw FileError(path, "it has more than 64 MiB");
    std::string text(file->size(), '\0');
    file->read(0, text.data(), text.size());
    return text;
  });
  return Object(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

Object write_file(const Arguments& args) {
  const std::string path = args.path(0, "path");
  const std::string text = args.contents(1, "text");
  without_gil([&] {
    WholeFile file(path);
    file.write(text.data(), text.size());
    file.commit();
  });
  return Object::none();
}

}  // namespace stagecraft::python
