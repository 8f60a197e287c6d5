# Tests on a GPU. `make test-gpu` builds the target gpu_tests, and runs what has the label gpu: without a GPU it fails.
set(files gpu/graph_test.cpp gpu/graph_crossings_test.cpp gpu/graph_memory_test.cpp gpu/graph_state_test.cpp gpu/recorded_graph_test.cpp gpu/resumed_graph_test.cpp gpu/overlap_test.cpp gpu/lanes_test.cpp
  gpu/messages_test.cpp gpu/random_test.cpp)
if(NOT STAGECRAFT_HAS_CUDA)
  list(TRANSFORM files PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(APPEND registered ${files})
  include(stand_in_tests.cmake)
  return()
endif()
set(STAGECRAFT_NCCL "" CACHE FILEPATH "libnccl.so.2 for the tests, in place of LibTorch's own: ranks that share a GPU need version 2.30 or later")

set(on_gpu STAGECRAFT_TEST_DEVICE=cuda PYTHONDONTWRITEBYTECODE=1)
set(over_nccl ${on_gpu} NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=1 CUDA_MODULE_LOADING=EAGER)  # as launch sets it
if(STAGECRAFT_NCCL)
  list(APPEND over_nccl LD_PRELOAD=${STAGECRAFT_NCCL})
endif()

# How many of the processes that may share the GPU (GPU_JOBS of the Makefile) a test with so many ranks takes: none takes less than three,
# so that no more tests run side by side than the cores bear. Of 16 processes with 32 queues each, an H200 had no room for two.
function(stagecraft_shares_gpu test ranks)
  if(ranks LESS 3)
    set(ranks 3)
  endif()
  set_tests_properties(${test} PROPERTIES PROCESSORS ${ranks})
endfunction()

# stagecraft_gpu_test(<name> [RANKS <processes>] ENVIRONMENT <variable>... COMMAND <command>...)
function(stagecraft_gpu_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "RANKS;ENVIRONMENT;COMMAND")
  add_test(NAME gpu.${name} COMMAND ${arg_COMMAND})
  set_tests_properties(gpu.${name} PROPERTIES LABELS gpu TIMEOUT 400 ENVIRONMENT "${arg_ENVIRONMENT}")
  set(ranks 1 ${arg_RANKS})
  list(GET ranks -1 ranks)
  stagecraft_shares_gpu(gpu.${name} ${ranks})
endfunction()

add_custom_target(gpu_tests)
add_dependencies(gpu_tests equivalence_test conformance_test crossings_test fault_program)

stagecraft_torch_test(gpu_test 1 ${files})
target_include_directories(gpu_test PRIVATE ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/gpu)
target_compile_definitions(gpu_test PRIVATE STAGECRAFT_TEST_PYTHON="${STAGECRAFT_PYTHON}"
  STAGECRAFT_TEST_EXPORT="${CMAKE_CURRENT_SOURCE_DIR}/gpu/export_models.py")
set_tests_properties(gpu_test.1 PROPERTIES LABELS gpu RUN_SERIAL ON ENVIRONMENT GTEST_FILTER=-GraphsOfProcesses.*)  # it measures time
add_dependencies(gpu_tests gpu_test)

set(bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
stagecraft_gpu_test(equivalence.threads ENVIRONMENT ${on_gpu} COMMAND ${bin}/equivalence_test --gtest_brief=1)
stagecraft_gpu_test(crossings.threads ENVIRONMENT ${on_gpu} STAGECRAFT_CROSSINGS_SECONDS=20 COMMAND ${bin}/crossings_test --gtest_brief=1)
foreach(ranks 2 4)
  set(start ${start_processes} -n ${ranks})
  stagecraft_gpu_test(conformance.nccl.${ranks} RANKS ${ranks} ENVIRONMENT ${over_nccl} COMMAND ${start} ${bin}/conformance_test --gtest_brief=1)
  stagecraft_gpu_test(equivalence.nccl.${ranks} RANKS ${ranks} ENVIRONMENT ${over_nccl} COMMAND ${start} ${bin}/equivalence_test --gtest_brief=1)
  stagecraft_gpu_test(graphs.nccl.${ranks} RANKS ${ranks} ENVIRONMENT ${over_nccl} COMMAND ${start} ${bin}/gpu_test --gtest_brief=1 --gtest_filter=GraphsOfProcesses.*)
  stagecraft_gpu_test(crossings.nccl.${ranks} RANKS ${ranks} ENVIRONMENT ${over_nccl} STAGECRAFT_CROSSINGS_SECONDS=300
                      COMMAND ${start} ${bin}/crossings_test --gtest_brief=1)
  if(STAGECRAFT_HAS_MPI)
    stagecraft_mpi_test(gpu.graphs.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} gpu_test --gtest_brief=1 --gtest_filter=GraphsOfProcesses.*)
    stagecraft_mpi_test(gpu.equivalence.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} equivalence_test --gtest_brief=1)
    set_property(TEST gpu.graphs.mpi.${ranks} gpu.equivalence.mpi.${ranks} APPEND PROPERTY ENVIRONMENT ${on_gpu})
    set_tests_properties(gpu.graphs.mpi.${ranks} gpu.equivalence.mpi.${ranks} PROPERTIES LABELS gpu)
    stagecraft_shares_gpu(gpu.graphs.mpi.${ranks} ${ranks})
    stagecraft_shares_gpu(gpu.equivalence.mpi.${ranks} ${ranks})
  endif()
endforeach()
stagecraft_gpu_test(faults.nccl ENVIRONMENT ${over_nccl} FAULT_PROGRAM=${bin}/fault_program
                    "MPIEXEC=${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/support/start_processes.py"
                    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/faults/test_faults.py
                    Accidents.test_a_rank_throws Accidents.test_a_rank_is_killed Accidents.test_a_rank_is_stopped)
set_tests_properties(gpu.faults.nccl PROPERTIES RUN_SERIAL ON)  # others beside it would make ranks late

if(STAGECRAFT_BUILD_EXAMPLES)
  add_dependencies(gpu_tests gpt_demo)
  set(demo ${bin}/gpt_demo --device cuda ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CONTRIBUTING.md --out ${CMAKE_CURRENT_BINARY_DIR}/gpu_demo)
  stagecraft_gpu_test(demo.threads ENVIRONMENT ${on_gpu} COMMAND ${demo}_threads)
  foreach(ranks 2 4)
    stagecraft_gpu_test(demo.nccl.${ranks} RANKS ${ranks} ENVIRONMENT ${over_nccl} COMMAND ${start_processes} -n ${ranks} ${demo}_nccl_${ranks})
  endforeach()
endif()
if(TARGET stagecraft)
  add_dependencies(gpu_tests stagecraft stagecraft_train)
  stagecraft_gpu_test(train ENVIRONMENT ${over_nccl} STAGECRAFT_BIN=${bin}/stagecraft
                      COMMAND ${STAGECRAFT_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/test_train.py)
endif()
if(TARGET stagecraft_python)
  add_dependencies(gpu_tests stagecraft_python)
  foreach(part graphs graph_state graph_callers graph_compiled graph_stories pipelining processes)
    stagecraft_gpu_test(python.${part} ENVIRONMENT ${over_nccl} PYTHONPATH=${PROJECT_BINARY_DIR}/python
                        COMMAND ${STAGECRAFT_PYTHON} -m unittest test_${part})
    set_tests_properties(gpu.python.${part} PROPERTIES WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/python/gpu)
  endforeach()
endif()
