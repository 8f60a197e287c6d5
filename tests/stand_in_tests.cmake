# Captured steps without a GPU: the CPU stands in for one.
add_library(stand_in OBJECT stand_in/graph_device.cpp stand_in/memory.cpp stand_in/streams.cpp)
target_link_libraries(stand_in PRIVATE stagecraft::stagecraft stagecraft_warnings)
target_include_directories(stand_in PRIVATE ${PROJECT_SOURCE_DIR})
stagecraft_precompile(stand_in torch_library)
stagecraft_unity(stand_in)

stagecraft_torch_test(graphs_test 1 gpu/graph_test.cpp gpu/graph_crossings_test.cpp gpu/lanes_test.cpp gpu/resumed_graph_test.cpp
                      gpu/recorded_graph_test.cpp gpu/overlap_test.cpp)
target_link_libraries(graphs_test PRIVATE stand_in)
target_include_directories(graphs_test PRIVATE ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/gpu)
target_compile_definitions(graphs_test PRIVATE STAGECRAFT_TEST_PYTHON="${STAGECRAFT_PYTHON}"
  STAGECRAFT_TEST_EXPORT="${CMAKE_CURRENT_SOURCE_DIR}/gpu/export_models.py")
set_property(TEST graphs_test.1 APPEND PROPERTY ENVIRONMENT
  GTEST_FILTER=-GraphsOfProcesses.*:Lanes.ComputeSmallKernelsSideBySide:Overlaps.*RunSideBySide:RecordedGraphs.SayHowLongEachActionTook)  # about time

# The same program as crossings_test, which then draws graphs too.
add_executable(graph_crossings_test $<TARGET_OBJECTS:crossings_test>)
target_link_libraries(graph_crossings_test PRIVATE stand_in stagecraft::stagecraft GTest::gtest_main GTest::gmock)
stagecraft_gtest(graph_crossings_test 1)
