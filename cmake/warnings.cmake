# Warnings as a target: everything of ours links it, nothing of it reaches a consumer.
add_library(stagecraft_warnings INTERFACE)
target_compile_options(stagecraft_warnings INTERFACE -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor)
