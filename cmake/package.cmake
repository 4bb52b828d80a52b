# SPDX-License-Identifier: Apache-2.0
# `cmake --build ... --target package`: a .tar.gz of what `cmake --install` lays down, and three .deb packages: the
# library, what is needed to build with it, and the program.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_VENDOR "The Strobe authors")
set(CPACK_PACKAGE_CONTACT "The Strobe authors <strobe@strobe.invalid>") # where nobody else builds the package: deb/cpack.cmake.in
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_SYSTEM_NAME "${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)

set(STROBE_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(library libstrobe${STROBE_SOVERSION})
set(CPACK_COMPONENTS_ALL runtime development program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${library})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libstrobe-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${library} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME strobe)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS "${library} (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "${PROJECT_DESCRIPTION}: the library")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${PROJECT_DESCRIPTION}: headers of C++ and C, CMake package, pkg-config file")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "${PROJECT_DESCRIPTION}: the command line")

# dpkg-shlibdeps finds the packages of the libraries that were linked, but for this one.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/lib")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/cmake/deb/triggers")
file(WRITE "${PROJECT_BINARY_DIR}/cmake/deb/triggers" "activate-noawait ldconfig\n")

# Only where the packages are whole: a library of its own and a program.
if(BUILD_SHARED_LIBS AND TARGET strobe_program AND CMAKE_LIBRARY_ARCHITECTURE)
  add_subdirectory(cmake/deb EXCLUDE_FROM_ALL)
else()
  set(CPACK_GENERATOR TGZ)
endif()
configure_file(cmake/deb/cpack.cmake.in "${PROJECT_BINARY_DIR}/cpack.cmake" @ONLY)
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_BINARY_DIR}/cpack.cmake")
set(CPACK_POST_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/deb/control.cmake")
include(CPack)
