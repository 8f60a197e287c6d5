# Tests of the half that trains: few and large programs, with one precompiled torch/torch.h between them.

# stagecraft_torch_test(<name> <timeout in seconds> <file>...)
function(stagecraft_torch_test name timeout)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE stagecraft::stagecraft stagecraft_warnings GTest::gtest_main GTest::gmock)
  if(TARGET autograd_test AND NOT name STREQUAL autograd_test)
    target_precompile_headers(${name} REUSE_FROM autograd_test)
  else()
    target_precompile_headers(${name} PRIVATE <torch/torch.h> <gtest/gtest.h> <gmock/gmock.h>)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT ${timeout})
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  set(registered ${registered} ${files} PARENT_SCOPE)
endfunction()

stagecraft_torch_test(autograd_test 120 unit/autograd/backward_test.cpp)
stagecraft_torch_test(equivalence_test 600 equivalence/equivalence_test.cpp)
stagecraft_torch_test(runtime_test 120 unit/runtime/pipeline_test.cpp)
