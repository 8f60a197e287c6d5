# Installs what was built into a scratch folder and uses it from there, with an empty environment.
set(environment "STAGECRAFT_BUILD=${CMAKE_BINARY_DIR};STAGECRAFT_VERSION=${PROJECT_VERSION};CMAKE=${CMAKE_COMMAND};CXX=${CMAKE_CXX_COMPILER}"
                "STAGECRAFT_LAUNCHER=${STAGECRAFT_CCACHE};PYTHONDONTWRITEBYTECODE=1")
foreach(half schedule training)
  set(python ${Python3_EXECUTABLE})
  set(has_half ON)
  if(half STREQUAL training)
    set(has_half ${STAGECRAFT_HAS_TORCH})
    set(python ${STAGECRAFT_PYTHON})  # it exports a model
  endif()
  if(has_half)
    add_test(NAME install.${half} COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/install/test_${half}.py)
    set_tests_properties(install.${half} PROPERTIES COST 40 ENVIRONMENT "${environment}")
  endif()
endforeach()
if(TEST install.training)
  stagecraft_more(install.training)
endif()
