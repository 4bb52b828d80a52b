# SPDX-License-Identifier: Apache-2.0
# Runs a port as `vcpkg install` would, by CMake alone, against the system's libraries. It stands in for vcpkg, which is
# in no distribution: what these functions do is what vcpkg documents, and no more of it than the port calls.
# cmake -DPORT_FOLDER=... -DWORK=... -P run_port.cmake
set(PORT strobe)
set(FEATURES core)
set(CURRENT_PACKAGES_DIR "${WORK}/installed")

function(vcpkg_download_distfile out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "URLS;FILENAME;SHA512" "")
  file(DOWNLOAD "${arg_URLS}" "${WORK}/${arg_FILENAME}" EXPECTED_HASH SHA512=${arg_SHA512})
  set(${out} "${WORK}/${arg_FILENAME}" PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  file(ARCHIVE_EXTRACT INPUT "${arg_ARCHIVE}" DESTINATION "${WORK}/source")
  file(GLOB top LIST_DIRECTORIES true "${WORK}/source/*")
  set(${out} "${top}" PARENT_SCOPE)
endfunction()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options)
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature variable)
    set(value OFF)
    if(feature IN_LIST FEATURES)
      set(value ON)
    endif()
    list(APPEND options -D${variable}=${value})
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} ${options} PARENT_SCOPE)
endfunction()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  run(${CMAKE_COMMAND} -G Ninja -S "${arg_SOURCE_PATH}" -B "${WORK}/build" -DBUILD_SHARED_LIBS=OFF ${arg_OPTIONS}
    ${TEST_OPTIONS} "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" -DCMAKE_INSTALL_LIBDIR=lib)
endfunction()

function(vcpkg_cmake_install)
  run(${CMAKE_COMMAND} --build "${WORK}/build" --target install)
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/strobe-config.cmake")
    message(FATAL_ERROR "there is no CMake package in ${arg_CONFIG_PATH}")
  endif()
endfunction()

function(vcpkg_fixup_pkgconfig)
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/lib/pkgconfig/strobe.pc")
    message(FATAL_ERROR "there is no lib/pkgconfig/strobe.pc")
  endif()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  foreach(file IN LISTS arg_FILE_LIST)
    file(READ "${file}" text)
    file(APPEND "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" "${text}")
  endforeach()
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(CMAKE_CURRENT_LIST_DIR "${PORT_FOLDER}") # a port knows its own folder
include("${PORT_FOLDER}/portfile.cmake")
