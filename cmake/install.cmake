# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down: headers, library, program, CMake package and pkg-config file.
include(CMakePackageConfigHelpers)

# Relative paths, so that an installed tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY "${CMAKE_INSTALL_FULL_BINDIR}"
  OUTPUT_VARIABLE libdir_from_bindir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig"
  OUTPUT_VARIABLE prefix_from_pkgconfig)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/strobe")

install(DIRECTORY include/strobe TYPE INCLUDE)
install(TARGETS strobe EXPORT strobe)
if(TARGET strobe_program)
  set_target_properties(strobe_program PROPERTIES INSTALL_RPATH "$ORIGIN/${libdir_from_bindir}")
  install(TARGETS strobe_program)
endif()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")

install(EXPORT strobe NAMESPACE strobe:: FILE strobe-targets.cmake DESTINATION "${package_dir}")
configure_package_config_file(cmake/strobe-config.cmake.in "${PROJECT_BINARY_DIR}/strobe-config.cmake"
  INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may break what the one before it promised.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/strobe-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/strobe-config.cmake" "${PROJECT_BINARY_DIR}/strobe-config-version.cmake"
  DESTINATION "${package_dir}")

# A static libstrobe leaves its own libraries for the user to link; a shared one has linked them already.
if(NOT BUILD_SHARED_LIBS)
  set(strobe_requires "libhwy, tbb, fmt, libmd")
  set(strobe_libs " -lstdc++ -lm")
endif()
configure_file(cmake/strobe.pc.in "${PROJECT_BINARY_DIR}/strobe.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/strobe.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
