# Faster builds where the tools are there, and the sanitizers a preset asks for.
find_program(STAGECRAFT_CCACHE ccache)
if(STAGECRAFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${STAGECRAFT_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Nothing that uses a precompiled header is cached without this sloppiness and this option. Paths below the source folder count
    # relative to it, so that a second clone finds what the first one compiled. Clang's precompiled headers know the files they
    # were made from by path and time: those of one clone are no good in another.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${STAGECRAFT_CCACHE})
    add_compile_options(-fpch-preprocess)
  endif()
endif()

find_program(STAGECRAFT_MOLD mold)
if(STAGECRAFT_MOLD AND NOT STAGECRAFT_SANITIZE)
  add_link_options(-fuse-ld=mold)
endif()

if(STAGECRAFT_SANITIZE)
  # -O1 and line tables: instrumented code compiles several times slower, and its reports need no more.
  add_compile_options(-fsanitize=${STAGECRAFT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=${STAGECRAFT_SANITIZE})
  if(STAGECRAFT_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-maybe-uninitialized)  # GCC 12 errs on std::optional once this sanitizer is in between
  endif()
  if(STAGECRAFT_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-tsan)  # LibTorch's headers have fences, which the sanitizer does not follow
  endif()
endif()
