# cmake --install, and the package that find_package(Stagecraft) finds afterwards. What was not built is left out, and named.
include(CMakePackageConfigHelpers)

# Headers that only Stagecraft's own folders include.
set(internal checkpoint/dtypes core/balance core/in_parts core/permutation core/random core/text
    data_parallel/averager data_parallel/masters data_parallel/beside_record file/checksum file/npy file/safetensors file/token_file file/whole_file file/zip_copy checkpoint/weight_sink graph/operators graph/report runtime/timeline_message schedule/dataflow
    stage/stand_ins transport/streams)
list(JOIN internal "|" internal)
install(DIRECTORY include/stagecraft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} REGEX "/(${internal})\\.h$" EXCLUDE)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Stagecraft)
install(EXPORT StagecraftTargets NAMESPACE stagecraft:: DESTINATION ${package})
set(STAGECRAFT_TORCH_ARCHIVES "")
if(STAGECRAFT_HAS_TORCH)
  install(EXPORT StagecraftTorchTargets NAMESPACE stagecraft:: DESTINATION ${package})
  get_property(libraries GLOBAL PROPERTY StagecraftTorchTargets)
  foreach(library ${libraries})
    list(APPEND STAGECRAFT_TORCH_ARCHIVES ${CMAKE_STATIC_LIBRARY_PREFIX}${library}${CMAKE_STATIC_LIBRARY_SUFFIX})
  endforeach()
endif()

# LibTorch and MPI are looked for first where these libraries were built with them. LibTorch's ABI changes with its minor version.
set(STAGECRAFT_TORCH_PREFIX "${TORCH_INSTALL_PREFIX}")
set(STAGECRAFT_TORCH_VERSION "")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" STAGECRAFT_TORCH_VERSION "${Torch_VERSION}")
set(PACKAGE_LIBRARIES ${CMAKE_INSTALL_LIBDIR})
configure_package_config_file(cmake/StagecraftConfig.cmake.in ${CMAKE_BINARY_DIR}/StagecraftConfig.cmake INSTALL_DESTINATION ${package}
                              PATH_VARS PACKAGE_LIBRARIES)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/StagecraftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/StagecraftConfig.cmake ${CMAKE_BINARY_DIR}/StagecraftConfigVersion.cmake cmake/cuda_of_torch.cmake
        DESTINATION ${package})

# What `make page` has built, if it has.
install(FILES ${CMAKE_BINARY_DIR}/share/stagecraft/page.html DESTINATION ${CMAKE_INSTALL_DATADIR}/stagecraft OPTIONAL)

set(documents ${CMAKE_INSTALL_DATAROOTDIR}/doc/stagecraft)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${documents})
install(DIRECTORY docs DESTINATION ${documents})

# `cmake --build build --target installed` builds all of it and nothing else.
if(PROJECT_IS_TOP_LEVEL)
  get_property(libraries GLOBAL PROPERTY StagecraftTargets)
  get_property(torch_libraries GLOBAL PROPERTY StagecraftTorchTargets)
  add_custom_target(installed DEPENDS ${libraries} ${torch_libraries})
  foreach(program stagecraft stagecraft_train)
    if(TARGET ${program})
      add_dependencies(installed ${program})
    endif()
  endforeach()
  configure_file(cmake/install_summary.cmake.in ${CMAKE_BINARY_DIR}/install_summary.cmake @ONLY)
  install(SCRIPT ${CMAKE_BINARY_DIR}/install_summary.cmake)
endif()
