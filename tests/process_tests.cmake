# Tests of ranks as processes that find each other by variables, as torchrun sets them, and talk by TCP: the programs that also
# run under mpirun.
set(start_processes ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/support/start_processes.py)

# stagecraft_test_program(<name> <source>): a program that is not a test by itself; bin/<name> runs it.
function(stagecraft_test_program name source)
  set_property(GLOBAL APPEND PROPERTY stagecraft_test_programs ${name}=${CMAKE_CURRENT_SOURCE_DIR}/${source})
endfunction()

# stagecraft_fault_test(<name> <launcher> <program>): accidents of every kind.
function(stagecraft_fault_test name launcher program)
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/faults/test_faults.py)
  set_tests_properties(${name} PROPERTIES RUN_SERIAL ON  # others beside it would make ranks late
    ENVIRONMENT "FAULT_PROGRAM=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program};MPIEXEC=${launcher};PYTHONDONTWRITEBYTECODE=1")
endfunction()

# stagecraft_process_test(<name> <ranks> <program> [<argument>...])
function(stagecraft_process_test name ranks program)
  add_test(NAME ${name} COMMAND ${start_processes} -n ${ranks} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} ${ARGN})
  set_tests_properties(${name} PROPERTIES PROCESSORS 2 COST 60 ENVIRONMENT_MODIFICATION STAGECRAFT_TEST_ALL=unset:
    ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1")
endfunction()

foreach(ranks 1 2 4)
  add_test(NAME conformance.processes.${ranks} COMMAND ${undisturbed} ${start_processes} -n ${ranks}
           ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/conformance_test --gtest_brief=1)
  set_tests_properties(conformance.processes.${ranks} PROPERTIES PROCESSORS 2 ENVIRONMENT_MODIFICATION STAGECRAFT_TEST_ALL=unset:
    ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1")
endforeach()
stagecraft_more(conformance.processes.1 conformance.processes.4)

if(NOT STAGECRAFT_SANITIZE)
  foreach(ranks 2 4)
    stagecraft_process_test(multiproc.processes.${ranks} ${ranks} equivalence_test --gtest_brief=1)
    stagecraft_process_test(crossings.processes.${ranks} ${ranks} crossings_test --gtest_brief=1)
  endforeach()
  stagecraft_process_test(checkpoint.processes.4 4 checkpoint_test --gtest_brief=1 --gtest_filter=-*OnThreads.*)
  stagecraft_more(multiproc.processes.2 multiproc.processes.4 crossings.processes.2 crossings.processes.4 checkpoint.processes.4)
  if(STAGECRAFT_BUILD_EXAMPLES)
    stagecraft_process_test(examples.gpt.processes 4 gpt_demo --steps 2 --replicas 2 --out ${CMAKE_CURRENT_BINARY_DIR}/gpt_processes
                            ${PROJECT_SOURCE_DIR}/README.md)
    # The real launcher.
    add_test(NAME examples.gpt.torchrun COMMAND ${STAGECRAFT_PYTHON} -m torch.distributed.run --standalone --no-python --nproc-per-node 2
             ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/gpt_demo --steps 2 --out ${CMAKE_CURRENT_BINARY_DIR}/gpt_torchrun ${PROJECT_SOURCE_DIR}/README.md)
    set_tests_properties(examples.gpt.torchrun PROPERTIES PROCESSORS 2 PASS_REGULAR_EXPRESSION "the same, bit for bit")
    stagecraft_more(examples.gpt.processes)
  endif()
  stagecraft_test_program(launch_again multiproc/launch_again.cpp)
  stagecraft_process_test(launch.again 3 launch_again 40)
  add_test(NAME launch.torchrun_restart COMMAND ${STAGECRAFT_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/multiproc/test_torchrun_restart.py)
  set_tests_properties(launch.torchrun_restart PROPERTIES PROCESSORS 2
    ENVIRONMENT "LAUNCH_AGAIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/launch_again;PYTHONDONTWRITEBYTECODE=1")
  # As workers of torchrun that a launcher of MPI has started.
  stagecraft_process_test(launch.torchrun_under_mpi 2 launch_again 2)
  set_property(TEST launch.torchrun_under_mpi APPEND PROPERTY ENVIRONMENT TORCHELASTIC_RUN_ID=job OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0)
  set_tests_properties(launch.torchrun_under_mpi PROPERTIES PASS_REGULAR_EXPRESSION "a world of 2 ranks")
  stagecraft_test_program(fault_program faults/fault_program.cpp)
  stagecraft_fault_test(faults.processes "${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/support/start_processes.py" fault_program)
  stagecraft_more(faults.processes)
endif()
