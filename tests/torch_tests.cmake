# Tests of the half that trains: few and large programs.

# stagecraft_torch_test(<name> <shards> <file>...): one test program, its cases in so many processes.
function(stagecraft_torch_test name shards)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE stagecraft::stagecraft stagecraft_warnings GTest::gtest_main GTest::gmock)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  # GTest brings a definition along: its programs may use the headers of others, others not theirs.
  get_property(shared GLOBAL PROPERTY stagecraft_precompiled_torch_program)
  if(shared)
    stagecraft_torch_program(${name})
  else()
    stagecraft_precompile(${name} torch_test <torch/torch.h>)
  endif()
  list(LENGTH ARGN files)
  if(files GREATER 1)
    stagecraft_unity(${name})
  endif()
  stagecraft_gtest(${name} ${shards})
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  set(registered ${registered} ${files} PARENT_SCOPE)
endfunction()

stagecraft_torch_test(autograd_test 1 unit/autograd/backward_test.cpp unit/autograd/backward_memory_test.cpp unit/autograd/accumulators_test.cpp)
stagecraft_torch_test(equivalence_test 4 equivalence/equivalence_test.cpp equivalence/settings_test.cpp)
stagecraft_torch_test(crossings_test 1 crossings/crossings_test.cpp)
target_include_directories(crossings_test PRIVATE ${PROJECT_SOURCE_DIR})  # whether steps can be captured
stagecraft_torch_test(runtime_test 1 unit/runtime/pipeline_test.cpp unit/runtime/handlers_test.cpp unit/runtime/pipeline_errors_test.cpp
                      unit/runtime/loss_weight_test.cpp unit/runtime/memory_test.cpp unit/runtime/precision_test.cpp unit/runtime/step_options_test.cpp unit/runtime/recompute_test.cpp unit/runtime/replicas_test.cpp unit/runtime/sharding_test.cpp unit/automatic/auto_test.cpp
                      unit/runtime/fidelity_test.cpp unit/runtime/launch_test.cpp unit/runtime/graph_test.cpp unit/runtime/slow_rank_test.cpp unit/runtime/split_test.cpp unit/stage/microbatches_test.cpp
                      unit/model/operators_test.cpp unit/runtime/launched_test.cpp unit/runtime/overlap_test.cpp unit/runtime/capture_memory_test.cpp unit/runtime/made_memory_test.cpp unit/runtime/use_watch_test.cpp unit/runtime/lanes_test.cpp unit/runtime/shared_gradients_test.cpp unit/runtime/handed_on_test.cpp)
target_include_directories(runtime_test PRIVATE ${PROJECT_SOURCE_DIR}/src/runtime ${PROJECT_SOURCE_DIR}/src/automatic)  # failures that no user can cause
set_property(TEST runtime_test.1 APPEND PROPERTY ENVIRONMENT GTEST_FILTER=-SlowRank.*)
stagecraft_torch_test(checkpoint_test 1 unit/checkpoint/resume_test.cpp unit/checkpoint/checkpoint_errors_test.cpp
                      unit/checkpoint/interchange_test.cpp unit/checkpoint/checkpoints_test.cpp
                      unit/training/learning_rate_test.cpp unit/training/parameter_groups_test.cpp unit/training/fast_step_test.cpp)
target_include_directories(checkpoint_test PRIVATE ${PROJECT_SOURCE_DIR}/src/training)  # the fused step on a CPU
execute_process(COMMAND ${STAGECRAFT_PYTHON} -c "import safetensors.torch" RESULT_VARIABLE no_safetensors OUTPUT_QUIET ERROR_QUIET)
if(no_safetensors)
  message(FATAL_ERROR "The tests exchange files with Python's safetensors, which ${STAGECRAFT_PYTHON} does not have: run `make setup`, or "
    "configure with -DSTAGECRAFT_BUILD_TESTS=OFF")
endif()
set_property(TEST checkpoint_test.1 APPEND PROPERTY ENVIRONMENT STAGECRAFT_TEST_PYTHON=${STAGECRAFT_PYTHON}
  STAGECRAFT_TEST_INTERCHANGE=${CMAKE_CURRENT_SOURCE_DIR}/unit/checkpoint/interchange.py PYTHONDONTWRITEBYTECODE=1)
stagecraft_torch_test(conformance_test 1 conformance/transport_test.cpp conformance/waits_test.cpp conformance/tensor_kinds_test.cpp
                      conformance/group_test.cpp unit/transport/waiting_test.cpp unit/transport/roll_call_test.cpp
                      unit/transport/sockets/connection_test.cpp)
target_include_directories(conformance_test PRIVATE ${PROJECT_SOURCE_DIR}/src/transport)  # what ranks say of each other
stagecraft_torch_test(nccl_test 1 unit/transport/nccl/nccl_group_test.cpp unit/transport/nccl/watch_test.cpp unit/transport/nccl/failing_test.cpp
                      unit/transport/nccl/noting_nccl.cpp unit/data_parallel/beside_thread_test.cpp)
target_include_directories(nccl_test PRIVATE ${PROJECT_SOURCE_DIR}/src/transport ${PROJECT_SOURCE_DIR}/src/data_parallel)
set_property(TARGET nccl_test PROPERTY ENABLE_EXPORTS ON)  # NCCL's functions are looked up by name
if(STAGECRAFT_SANITIZE MATCHES thread)  # which ends a program that asks for too much memory
  set_property(TEST nccl_test.1 APPEND PROPERTY ENVIRONMENT GTEST_FILTER=-SocketChannel.*)
endif()
set(about_waits "*Rules*Wait*:*Rules*Slow*:*Rules*Settling*:*Rules*Abort*")
set_property(TEST conformance_test.1 APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-${about_waits}")
# Who waits for whom is found out within a timeout: on a busy machine a rank may be too late to answer. They sleep most of the time.
set(side_by_side "")
foreach(part 0 1 2)
  set(of ${CMAKE_COMMAND} -E env GTEST_TOTAL_SHARDS=3 GTEST_SHARD_INDEX=${part})
  list(APPEND side_by_side --beside ${of} $<TARGET_FILE:conformance_test> --gtest_brief=1 --gtest_filter=${about_waits}
       --beside ${of} $<TARGET_FILE:runtime_test> --gtest_brief=1 --gtest_filter=SlowRank.*)
endforeach()
list(POP_FRONT side_by_side)
add_test(NAME waits COMMAND ${undisturbed} ${side_by_side})
set_tests_properties(waits PROPERTIES RUN_SERIAL ON)
if(NOT STAGECRAFT_SANITIZE)  # it counts what is taken from the heap
  stagecraft_torch_test(allocations_test 1 unit/runtime/allocations_test.cpp)
  stagecraft_torch_test(bytes_test 1 unit/runtime/bytes_test.cpp)
  target_include_directories(bytes_test PRIVATE ${PROJECT_SOURCE_DIR})
else()
  list(APPEND registered ${CMAKE_CURRENT_SOURCE_DIR}/unit/runtime/allocations_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/unit/runtime/bytes_test.cpp)
endif()
if(NOT STAGECRAFT_SANITIZE)  # it compares numbers of LibTorch, which is not instrumented
  stagecraft_torch_test(concurrency_test 1 concurrency/operators_test.cpp concurrency/convolutions.cpp concurrency/products.cpp
                        concurrency/pointwise.cpp concurrency/reductions.cpp concurrency/layers.cpp concurrency/indexing.cpp)
else()
  list(APPEND registered ${CMAKE_CURRENT_SOURCE_DIR}/concurrency/operators_test.cpp)
endif()

include(process_tests.cmake)
if(STAGECRAFT_HAS_MPI)
  include(mpi_tests.cmake)
endif()
include(gpu_tests.cmake)

if(STAGECRAFT_BUILD_EXAMPLES)
  add_dependencies(tests examples_test gpt_demo)
  foreach(name ${short_examples})
    add_test(NAME examples.${name} COMMAND examples_test example_${name})
  endforeach()
  add_test(NAME examples.gpt COMMAND gpt_demo --steps 2 --out ${CMAKE_CURRENT_BINARY_DIR}/gpt ${PROJECT_SOURCE_DIR}/README.md)
  set_tests_properties(examples.gpt PROPERTIES PASS_REGULAR_EXPRESSION "loss 0, weights 0 .the same, bit for bit")
  if(TARGET stagecraft)  # what a run records is what the command reads
    add_test(NAME examples.gpt.profile COMMAND stagecraft profile ${CMAKE_CURRENT_BINARY_DIR}/gpt/timeline.json)
    set_tests_properties(examples.gpt PROPERTIES FIXTURES_SETUP demo_timeline)
    set_tests_properties(examples.gpt.profile PROPERTIES FIXTURES_REQUIRED demo_timeline
                         PASS_REGULAR_EXPRESSION "ZB-H1 +1 ")
  endif()
endif()
