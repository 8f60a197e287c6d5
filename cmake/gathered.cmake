# stagecraft_gathered(<target> <name>=<file>...): one program made of several short ones, each a file with its own main(). On LibTorch a
# program costs more to compile for the headers than for its own lines. It runs the one that its first argument names, or the one
# whose name it was called by: bin/<name> is a link to it unless a target of its own has that name.
function(stagecraft_gathered target)
  set(includes "")
  set(programs "")
  set(table "")
  set(links "")
  set(names "")
  foreach(entry ${ARGN})
    string(REGEX MATCH "^([^=]+)=(.+)$" matched ${entry})
    set(name ${CMAKE_MATCH_1})
    cmake_path(ABSOLUTE_PATH CMAKE_MATCH_2 BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    # Headers come first, outside the program's namespace, where its own #include then finds them included already.
    file(STRINGS ${file} lines REGEX "^#include ")
    list(APPEND includes ${lines})
    string(APPEND programs "namespace program_${name} {\n#include \"${file}\"\n}\n")
    string(APPEND table "    {\"${name}\", program_${name}::main},\n")
    if(NOT TARGET ${name})
      list(APPEND links COMMAND ${CMAKE_COMMAND} -E create_symlink ${target} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${name})
      list(APPEND names ${name})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(JOIN includes "\n" includes)
  file(CONFIGURE OUTPUT ${target}.cpp @ONLY CONTENT [[
@includes@
#include <cstring>
#include <filesystem>

@programs@
int main(int argc, char** argv) {
  struct Program {
    const char* name;
    int (*run)(int, char**);
  };
  const Program programs[] = {
@table@  };
  const std::string called = std::filesystem::path(argv[0]).filename().string();
  for (const Program& program : programs) {
    if (called == program.name) return program.run(argc, argv);
  }
  for (const Program& program : programs) {
    if (argc > 1 && std::strcmp(argv[1], program.name) == 0) return program.run(argc - 1, argv + 1);
  }
  std::cerr << called << ": say which of these to run:\n";
  for (const Program& program : programs) std::cerr << "  " << program.name << "\n";
  return 2;
}
]])
  add_executable(${target} ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE stagecraft::stagecraft stagecraft_warnings)
  stagecraft_torch_program(${target})
  if(links)
    add_custom_command(TARGET ${target} POST_BUILD ${links})
  endif()
  foreach(name ${names})
    add_custom_target(${name} DEPENDS ${target})
  endforeach()
endfunction()
