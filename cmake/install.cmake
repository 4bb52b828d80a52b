# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down: headers, library, program, CMake package and pkg-config file. cmake/deb includes it
# a second time, for the places where Debian has them.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Relative paths, so that an installed tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY "${CMAKE_INSTALL_FULL_BINDIR}"
  OUTPUT_VARIABLE libdir_from_bindir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig"
  OUTPUT_VARIABLE prefix_from_pkgconfig)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/strobe")

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/strobe TYPE INCLUDE COMPONENT development)
# In Debian links for the linker are a part of what is needed to build.
install(TARGETS strobe EXPORT ${STROBE_EXPORT}
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE COMPONENT development)
if(TARGET strobe_program)
  set_target_properties(strobe_program PROPERTIES INSTALL_RPATH "$ORIGIN/${libdir_from_bindir}")
  install(TARGETS strobe_program RUNTIME COMPONENT program)
endif()
if(TARGET strobe_shell_files)
  get_target_property(folder strobe_shell_files BINARY_DIR)
  install(FILES ${folder}/strobe.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  install(FILES ${folder}/strobe.bash RENAME strobe
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
  install(FILES ${folder}/strobe.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
  install(FILES ${folder}/strobe.zsh RENAME _strobe DESTINATION ${STROBE_ZSH_COMPLETIONS} COMPONENT program)
endif()

install(EXPORT ${STROBE_EXPORT} NAMESPACE strobe:: FILE strobe-targets.cmake DESTINATION "${package_dir}"
  COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/strobe-config.cmake.in strobe-config.cmake
  INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may break what the one before it promised.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/strobe-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/strobe-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/strobe-config-version.cmake"
  DESTINATION "${package_dir}" COMPONENT development)

# A static libstrobe leaves its own libraries for the user to link; a shared one has linked them already.
if(NOT BUILD_SHARED_LIBS)
  set(strobe_requires "libhwy, tbb, fmt, libmd")
  set(strobe_libs " -lstdc++ -lm")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/strobe.pc.in strobe.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/strobe.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
