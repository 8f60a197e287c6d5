# Installs the build tree to a scratch prefix, builds a consumer against it and runs that.
#   cmake -DBUILD=... -DSCRATCH=... -DSOURCE=... -DEXPECT=<regex of what the consumer prints> [-DFLAGS=<compiler flags>]
#         [-DLAUNCHER=<before the compiler>] [-DARGUMENTS=<more for the consumer's configuration>]
#         [-DVERSION=<what the installed command says>] -P run.cmake
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGV}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${SCRATCH}/build -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
    -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} ${ARGUMENTS})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer)
if(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "the consumer printed:\n${output}\nexpected: ${EXPECT}")
endif()
if(VERSION)
  run(${SCRATCH}/prefix/bin/stagecraft --version)
  if(NOT output MATCHES "${VERSION}")
    message(FATAL_ERROR "the installed command says: ${output}")
  endif()
endif()
