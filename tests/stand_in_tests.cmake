# Captured steps without a GPU: the CPU stands in for one.
if(STAGECRAFT_SANITIZE MATCHES thread)
  return()
endif()
add_library(stand_in OBJECT stand_in/graph_device.cpp stand_in/memory.cpp stand_in/streams.cpp)
target_link_libraries(stand_in PRIVATE stagecraft::stagecraft stagecraft_warnings)
target_include_directories(stand_in PRIVATE ${PROJECT_SOURCE_DIR})
stagecraft_precompile(stand_in torch_library)
stagecraft_unity(stand_in)

stagecraft_torch_test(graphs_test 1 gpu/graph_test.cpp gpu/graph_crossings_test.cpp gpu/graph_memory_test.cpp gpu/graph_state_test.cpp gpu/lanes_test.cpp gpu/resumed_graph_test.cpp
                      gpu/recorded_graph_test.cpp gpu/overlap_test.cpp)
target_link_libraries(graphs_test PRIVATE stand_in)
target_include_directories(graphs_test PRIVATE ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/gpu)
target_compile_definitions(graphs_test PRIVATE STAGECRAFT_TEST_PYTHON="${STAGECRAFT_PYTHON}"
  STAGECRAFT_TEST_EXPORT="${CMAKE_CURRENT_SOURCE_DIR}/gpu/export_models.py")
set_property(TEST graphs_test.1 APPEND PROPERTY ENVIRONMENT
  GTEST_FILTER=-GraphsOfProcesses.*:Lanes.ComputeSmallKernelsSideBySide:Overlaps.*RunSideBySide:RecordedGraphs.SayHowLongEachActionTook)  # about time

if(STAGECRAFT_SANITIZE)
  return()
endif()

if(TARGET stagecraft_python_runtime)
  # The same module, in a folder of its own.
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/stand_in_python/stagecraft/torch)
  add_library(stagecraft_python_stand_in MODULE EXCLUDE_FROM_ALL $<TARGET_OBJECTS:stagecraft_python_runtime>)
  get_target_property(libraries stagecraft_python_runtime LINK_LIBRARIES)
  list(REMOVE_ITEM libraries Python::Module)  # headers, and known in that folder alone
  target_link_libraries(stagecraft_python_stand_in PRIVATE stand_in ${libraries})
  set_target_properties(stagecraft_python_stand_in PROPERTIES OUTPUT_NAME _runtime PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${folder})
  file(GLOB python_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/training/stagecraft/torch/*.py ${PROJECT_BINARY_DIR}/python/stagecraft/torch/_built.py)
  file(MAKE_DIRECTORY ${folder})
  foreach(python_file ${python_files})
    get_filename_component(name ${python_file} NAME)
    file(CREATE_LINK ${python_file} ${folder}/${name} SYMBOLIC)
  endforeach()
  add_test(NAME python.graphs COMMAND ${STAGECRAFT_PYTHON} -m unittest test_graphs test_graph_state test_graph_callers test_graph_compiled test_graph_stories WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/python/gpu)
  set_tests_properties(python.graphs PROPERTIES LABELS python
    ENVIRONMENT "PYTHONPATH=${CMAKE_CURRENT_BINARY_DIR}/stand_in_python;PYTHONDONTWRITEBYTECODE=1;STAGECRAFT_TEST_DEVICE=cpu")
endif()

# The same program as crossings_test, which then draws graphs too.
add_executable(graph_crossings_test $<TARGET_OBJECTS:crossings_test>)
target_link_libraries(graph_crossings_test PRIVATE stand_in stagecraft::stagecraft GTest::gtest_main GTest::gmock)
stagecraft_gtest(graph_crossings_test 1)
foreach(ranks 2 4)
  stagecraft_process_test(graphs.processes.${ranks} ${ranks} graphs_test --gtest_brief=1 --gtest_filter=GraphsOfProcesses.*)
  stagecraft_process_test(graph_crossings.processes.${ranks} ${ranks} graph_crossings_test --gtest_brief=1)
  stagecraft_more(graph_crossings.processes.${ranks})
endforeach()
