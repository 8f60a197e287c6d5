# Tests of ranks as processes: the same programs under mpirun, with the MPI that the library is built with and, where it is
# installed too, with the other one.

# stagecraft_mpi_test(<name> <launcher> <ranks> <program> [<argument>...])
function(stagecraft_mpi_test name launcher ranks program)
  add_test(NAME ${name} COMMAND ${launcher} -n ${ranks} $<TARGET_FILE:${program}> ${ARGN})
  # As root, on fewer cores than ranks, and where processes may not read each other's memory: as in a container.
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 PROCESSORS 2
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_btl_vader_single_copy_mechanism=none")
endfunction()

foreach(ranks 1 2 3 4 5)
  stagecraft_mpi_test(conformance.mpi.${ranks} ${MPIEXEC_EXECUTABLE} ${ranks} conformance_test --gtest_brief=1)
endforeach()

# The other MPI: the same sources once more, compiled with its headers and taken before those of the library.
find_path(STAGECRAFT_MPICH_INCLUDE mpi.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/mpich NO_CMAKE_ENVIRONMENT_PATH)
find_library(STAGECRAFT_MPICH_LIBRARY mpich)
find_program(STAGECRAFT_MPICH_EXEC mpiexec.mpich)
if(STAGECRAFT_MPICH_INCLUDE MATCHES mpich AND STAGECRAFT_MPICH_LIBRARY AND STAGECRAFT_MPICH_EXEC AND NOT STAGECRAFT_SANITIZE)
  add_library(stagecraft_mpich OBJECT ${STAGECRAFT_MPI_SOURCES})
  target_link_libraries(stagecraft_mpich PRIVATE stagecraft_transport stagecraft_warnings)
  target_include_directories(stagecraft_mpich BEFORE PRIVATE ${STAGECRAFT_MPICH_INCLUDE})
  stagecraft_precompile(stagecraft_mpich torch_library)
  add_executable(conformance_test_mpich conformance/transport_test.cpp $<TARGET_OBJECTS:stagecraft_mpich>)
  target_link_options(conformance_test_mpich PRIVATE -Wl,--as-needed)
  target_include_directories(conformance_test_mpich PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(conformance_test_mpich PRIVATE ${STAGECRAFT_MPICH_LIBRARY} stagecraft::stagecraft
                                                       stagecraft_warnings GTest::gtest_main GTest::gmock)
  stagecraft_precompile(conformance_test_mpich torch_program)
  foreach(ranks 2 4)
    stagecraft_mpi_test(conformance.mpich.${ranks} ${STAGECRAFT_MPICH_EXEC} ${ranks} conformance_test_mpich --gtest_brief=1)
  endforeach()
endif()

# Accidents of every kind, on processes and on threads.
add_executable(fault_program faults/fault_program.cpp)
target_link_libraries(fault_program PRIVATE stagecraft::stagecraft stagecraft_warnings)
stagecraft_precompile(fault_program torch_program)
