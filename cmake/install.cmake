# cmake --install, and the package that find_package(Stagecraft) finds afterwards.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/stagecraft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT StagecraftTargets NAMESPACE stagecraft:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Stagecraft)
if(STAGECRAFT_HAS_TORCH)
  install(EXPORT StagecraftTorchTargets NAMESPACE stagecraft:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Stagecraft)
endif()
configure_package_config_file(cmake/StagecraftConfig.cmake.in ${CMAKE_BINARY_DIR}/StagecraftConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Stagecraft)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/StagecraftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/StagecraftConfig.cmake ${CMAKE_BINARY_DIR}/StagecraftConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Stagecraft)
