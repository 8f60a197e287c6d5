# Tests of ranks as processes: the same programs under mpirun, with the MPI that the library is built with and, where it is
# installed too, with the other one.

# stagecraft_mpi_test(<name> <launcher> <ranks> <program> [<argument>...])
function(stagecraft_mpi_test name launcher ranks program)
  add_test(NAME ${name} COMMAND ${launcher} -n ${ranks} $<TARGET_FILE:${program}> ${ARGN})
  # As root, on fewer cores than ranks, and where processes may not read each other's memory: as in a container. MPI
  # itself leaves memory behind.
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 PROCESSORS 2
    ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_btl_vader_single_copy_mechanism=none")
endfunction()

foreach(ranks 1 2 3 4 5)
  stagecraft_mpi_test(conformance.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} conformance_test --gtest_brief=1)
endforeach()

if(NOT STAGECRAFT_SANITIZE)
  foreach(ranks 2 4)
    stagecraft_mpi_test(checkpoint.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} checkpoint_test --gtest_brief=1
                        --gtest_filter=-*OnThreads.*)  # those are about one process
  endforeach()
  foreach(ranks 2 3 4)
    stagecraft_mpi_test(multiproc.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} equivalence_test --gtest_brief=1)
  endforeach()
  if(STAGECRAFT_BUILD_EXAMPLES)
    foreach(example ${short_examples})
      foreach(ranks 2 4)
        stagecraft_mpi_test(examples.${example}.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} example_${example})
      endforeach()
    endforeach()
    foreach(ranks 2 4)
      stagecraft_mpi_test(examples.gpt.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} gpt_demo --steps 2
                          --out ${CMAKE_CURRENT_BINARY_DIR}/gpt_mpi_${ranks} ${PROJECT_SOURCE_DIR}/README.md)
      set_tests_properties(examples.gpt.mpi.${ranks} PROPERTIES PASS_REGULAR_EXPRESSION "the same, bit for bit")
    endforeach()
    stagecraft_mpi_test(examples.gpt.replicas.mpi ${MPIEXEC_EXECUTABLE} 4 gpt_demo --steps 2 --replicas 2
                        --out ${CMAKE_CURRENT_BINARY_DIR}/gpt_replicas ${PROJECT_SOURCE_DIR}/README.md)
  endif()
endif()

# stagecraft_mpi_program(<name> <source>): a program that is not a test by itself.
function(stagecraft_mpi_program name source)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE stagecraft::stagecraft stagecraft_warnings)
  stagecraft_torch_program(${name})
endfunction()

# stagecraft_fault_test(<name> <launcher> <program>): accidents of every kind.
function(stagecraft_fault_test name launcher program)
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/faults/test_faults.py)
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 COST 50  # it waits more than it computes
    ENVIRONMENT "FAULT_PROGRAM=$<TARGET_FILE:${program}>;MPIEXEC=${launcher};PYTHONDONTWRITEBYTECODE=1")
endfunction()

if(NOT STAGECRAFT_SANITIZE)  # these end processes without a word, count bytes and seconds
  stagecraft_mpi_program(long_run multiproc/long_run.cpp)
  stagecraft_mpi_program(fault_program faults/fault_program.cpp)
  stagecraft_mpi_test(multiproc.long_run ${MPIEXEC_EXECUTABLE} 4 long_run)
  stagecraft_fault_test(faults.mpi ${MPIEXEC_EXECUTABLE} fault_program)
endif()

# The other MPI: the same sources once more, compiled with its headers and taken before those of the library.
find_path(STAGECRAFT_MPICH_INCLUDE mpi.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/mpich NO_CMAKE_ENVIRONMENT_PATH)
find_library(STAGECRAFT_MPICH_LIBRARY mpich)
find_program(STAGECRAFT_MPICH_EXEC mpiexec.mpich)
if(STAGECRAFT_MPICH_INCLUDE MATCHES mpich AND STAGECRAFT_MPICH_LIBRARY AND STAGECRAFT_MPICH_EXEC AND NOT STAGECRAFT_SANITIZE)
  add_library(stagecraft_mpich OBJECT ${STAGECRAFT_MPI_SOURCES})
  target_link_libraries(stagecraft_mpich PRIVATE stagecraft_transport stagecraft_warnings)
  target_include_directories(stagecraft_mpich BEFORE PRIVATE ${STAGECRAFT_MPICH_INCLUDE} ${PROJECT_SOURCE_DIR}/src/transport)
  stagecraft_precompile(stagecraft_mpich torch_library)

  # stagecraft_mpich_program(<name>): the program of that name, linked with the other MPI.
  function(stagecraft_mpich_program name)
    add_executable(${name}_mpich $<TARGET_OBJECTS:stagecraft_mpich> $<TARGET_PROPERTY:${name},SOURCES>)
    target_link_options(${name}_mpich PRIVATE -Wl,--as-needed)
    target_include_directories(${name}_mpich PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} $<TARGET_PROPERTY:${name},INCLUDE_DIRECTORIES>)
    target_link_libraries(${name}_mpich PRIVATE ${STAGECRAFT_MPICH_LIBRARY} $<TARGET_PROPERTY:${name},LINK_LIBRARIES>)
    stagecraft_torch_program(${name}_mpich)
  endfunction()

  stagecraft_mpich_program(conformance_test)
  foreach(ranks 2 4)
    stagecraft_mpi_test(conformance.mpich.${ranks} ${STAGECRAFT_MPICH_EXEC} ${ranks} conformance_test_mpich --gtest_brief=1)
  endforeach()
  stagecraft_mpich_program(fault_program)
  # Left to itself, this launcher kills the survivors before they can say anything.
  stagecraft_fault_test(faults.mpich "${STAGECRAFT_MPICH_EXEC} -disable-auto-cleanup" fault_program_mpich)
endif()
