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
