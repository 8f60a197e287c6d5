# The other MPI, where it is installed too: the files that call MPI once more, compiled with its headers and taken before those of the
# library. No test calls MPI itself, so their objects serve both.
find_path(STAGECRAFT_MPICH_INCLUDE mpi.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/mpich NO_CMAKE_ENVIRONMENT_PATH)
find_library(STAGECRAFT_MPICH_LIBRARY mpich)
find_program(STAGECRAFT_MPICH_EXEC mpiexec.mpich)
if(STAGECRAFT_MPICH_INCLUDE MATCHES mpich AND STAGECRAFT_MPICH_LIBRARY AND STAGECRAFT_MPICH_EXEC AND NOT STAGECRAFT_SANITIZE)
  add_library(stagecraft_mpich OBJECT ${STAGECRAFT_MPI_SOURCES})
  target_include_directories(stagecraft_mpich BEFORE PRIVATE ${STAGECRAFT_MPICH_INCLUDE})
  stagecraft_mpi_objects(stagecraft_mpich)

  # stagecraft_mpich_program(<name> <target>): the objects of that target, linked with the other MPI.
  function(stagecraft_mpich_program name target)
    add_executable(${name} $<TARGET_OBJECTS:stagecraft_mpich> $<TARGET_OBJECTS:${target}>)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_options(${name} PRIVATE -Wl,--as-needed)
    target_link_libraries(${name} PRIVATE ${STAGECRAFT_MPICH_LIBRARY} $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
    add_dependencies(more_tests ${name})
  endfunction()

  stagecraft_mpich_program(conformance_test_mpich conformance_test)
  foreach(ranks 2 4)
    stagecraft_mpi_test(conformance.mpich.${ranks} "${undisturbed};${STAGECRAFT_MPICH_EXEC}" ${ranks} conformance_test_mpich --gtest_brief=1)
    stagecraft_more(conformance.mpich.${ranks})
  endforeach()
  stagecraft_mpich_program(test_programs_mpich test_programs)
  add_custom_command(TARGET test_programs_mpich POST_BUILD COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/mpich
                     COMMAND ${CMAKE_COMMAND} -E create_symlink ../test_programs_mpich ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/mpich/fault_program)
  # Left to itself, this launcher kills the survivors before they can say anything.
  stagecraft_fault_test(faults.mpich "${STAGECRAFT_MPICH_EXEC} -disable-auto-cleanup" mpich/fault_program)
  set_tests_properties(faults.mpich PROPERTIES ENVIRONMENT_MODIFICATION STAGECRAFT_FAULT_TRIALS=unset:)  # Open MPI has the many
  stagecraft_more(faults.mpich)
endif()
