# stagecraft_precompile(<target> <group> <header>...): a LibTorch header costs more than our own code, so it is parsed once
# per group. The first target of a group compiles the headers, the others take its result; all of a group must be alike
# (library or program), since position-independent code of two kinds cannot share.
function(stagecraft_precompile target group)
  get_property(owner GLOBAL PROPERTY stagecraft_precompiled_${group})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY stagecraft_precompiled_${group} ${target})
  endif()
endfunction()

option(STAGECRAFT_UNITY "Compile several files of a target at once" ON)

# stagecraft_unity(<target>): what a LibTorch header instantiates costs seconds in every file, precompiled or not, so files are
# compiled several at a time. Names in them must differ, those of unnamed namespaces too.
function(stagecraft_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${STAGECRAFT_UNITY} UNITY_BUILD_BATCH_SIZE 6)
  if(STAGECRAFT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # of unnamed namespaces: takes these files for headers
  endif()
endfunction()

# stagecraft_thin(<target>): a program that only calls what is optimised elsewhere. With sanitizers, what counts is that memory
# and threads are watched in it too; undefined behaviour is looked for in the library.
function(stagecraft_thin target)
  if(STAGECRAFT_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
    if(STAGECRAFT_SANITIZE MATCHES undefined)
      target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
    endif()
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# stagecraft_torch_program(<target>): such a program on LibTorch.
function(stagecraft_torch_program target)
  stagecraft_thin(${target})
  stagecraft_precompile(${target} torch_program <torch/torch.h>)
endfunction()
