# Warnings as a target: everything of ours links it, nothing of it reaches a consumer.
add_library(stagecraft_warnings INTERFACE)
target_compile_options(stagecraft_warnings INTERFACE -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor)
# GCC 13 takes the memmove inside its own vector<bool> for one out of bounds, wherever LibTorch makes such a vector.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(stagecraft_warnings INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
endif()
