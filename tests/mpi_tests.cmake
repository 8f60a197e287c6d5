# Tests of ranks as processes: the same programs under mpirun, with the MPI that the library is built with. Each starts LibTorch once per rank
# and takes two processors, so `make test` takes some numbers of ranks, `make test-all` all of them.

# stagecraft_mpi_test(<name> <launcher> <ranks> <program> [<argument>...])
function(stagecraft_mpi_test name launcher ranks program)
  add_test(NAME ${name} COMMAND ${launcher} -n ${ranks} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} ${ARGN})
  # As root, on fewer cores than ranks, and where processes may not read each other's memory: as in a container. MPI
  # itself leaves memory behind.
  # Every setting is looked at by threads alone. COST: among the first, so that programs of one process run beside them.
  set_tests_properties(${name} PROPERTIES PROCESSORS 2 COST 60 ENVIRONMENT_MODIFICATION STAGECRAFT_TEST_ALL=unset:
    ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_btl_vader_single_copy_mechanism=none")
endfunction()

foreach(ranks 1 2 3 4 5)
  stagecraft_mpi_test(conformance.mpi.${ranks} "${undisturbed};${MPIEXEC_EXECUTABLE}" ${ranks} conformance_test --gtest_brief=1)
endforeach()
stagecraft_more(conformance.mpi.1 conformance.mpi.3 conformance.mpi.5)
set_tests_properties(conformance.mpi.2 conformance.mpi.4 PROPERTIES COST 0)  # what disturbs them makes them run again

if(NOT STAGECRAFT_SANITIZE)
  foreach(ranks 2 4)
    stagecraft_mpi_test(checkpoint.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} checkpoint_test --gtest_brief=1
                        --gtest_filter=-*OnThreads.*)  # those are about one process
  endforeach()
  stagecraft_more(checkpoint.mpi.2)
  foreach(ranks 2 3)
    stagecraft_mpi_test(bytes.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} bytes_test --gtest_brief=1)
  endforeach()
  stagecraft_more(bytes.mpi.2 bytes.mpi.3)
  foreach(ranks 2 3 4)
    stagecraft_mpi_test(multiproc.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} equivalence_test --gtest_brief=1)
  endforeach()
  stagecraft_more(multiproc.mpi.2 multiproc.mpi.3)
  foreach(ranks 2 3 4)
    stagecraft_mpi_test(crossings.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} crossings_test --gtest_brief=1)
  endforeach()
  stagecraft_more(crossings.mpi.2 crossings.mpi.3)
  if(STAGECRAFT_BUILD_EXAMPLES)
    foreach(example ${short_examples})
      foreach(ranks 2 4)
        stagecraft_mpi_test(examples.${example}.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} examples_test example_${example})
      endforeach()
      stagecraft_more(examples.${example}.mpi.4)
      if(NOT example MATCHES "sequential|replicas")
        stagecraft_more(examples.${example}.mpi.2)
      endif()
    endforeach()
    foreach(ranks 2 4)
      stagecraft_mpi_test(examples.gpt.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} gpt_demo --steps 2
                          --out ${CMAKE_CURRENT_BINARY_DIR}/gpt_mpi_${ranks} ${PROJECT_SOURCE_DIR}/README.md)
      set_tests_properties(examples.gpt.mpi.${ranks} PROPERTIES PASS_REGULAR_EXPRESSION "the same, bit for bit")
    endforeach()
    stagecraft_more(examples.gpt.mpi.2)
    stagecraft_mpi_test(examples.gpt.replicas.mpi ${MPIEXEC_EXECUTABLE} 4 gpt_demo --steps 2 --replicas 2
                        --out ${CMAKE_CURRENT_BINARY_DIR}/gpt_replicas ${PROJECT_SOURCE_DIR}/README.md)
  endif()
endif()

if(NOT STAGECRAFT_SANITIZE)  # these end processes without a word, count bytes and seconds
  stagecraft_test_program(long_run multiproc/long_run.cpp)
  stagecraft_mpi_test(multiproc.long_run ${MPIEXEC_EXECUTABLE} 4 long_run)
  stagecraft_more(multiproc.long_run)
  # As one of three that the launcher of another MPI has started.
  add_test(NAME launch.another_mpi COMMAND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/launch_again 1)
  set_tests_properties(launch.another_mpi PROPERTIES PASS_REGULAR_EXPRESSION "mpirun or srun has started 3 ranks, but MPI has found 1"
    ENVIRONMENT "OMPI_COMM_WORLD_SIZE=3;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
  stagecraft_fault_test(faults.mpi ${MPIEXEC_EXECUTABLE} fault_program)
  stagecraft_test_program(resume_program faults/resume_program.cpp)
  add_test(NAME faults.resume COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/faults/test_resume.py)
  set_tests_properties(faults.resume PROPERTIES PROCESSORS 2
    ENVIRONMENT "RESUME_PROGRAM=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/resume_program;MPIEXEC=${MPIEXEC_EXECUTABLE};PYTHONDONTWRITEBYTECODE=1")
endif()
