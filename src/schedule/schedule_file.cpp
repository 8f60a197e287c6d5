#include "stagecraft/schedule/schedule_file.h"

#include <fstream>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft {

bool is_schedule_file(std::string_view name) { return name.ends_with(".csv"); }

Schedule read_schedule(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InvalidArgument("the schedule file '" + path + "' cannot be read: give a CSV file, or a known name");
  return Schedule::from_rows(parse_csv(text.str()), path);
}

}  // namespace stagecraft
