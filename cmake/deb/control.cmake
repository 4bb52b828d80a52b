# SPDX-License-Identifier: Apache-2.0
# Run by cpack when the packages are there.
foreach(package IN LISTS CPACK_PACKAGE_FILES)
  if(package MATCHES "[.]deb$")
    execute_process(COMMAND "${CMAKE_CURRENT_LIST_DIR}/control.sh" "${package}" COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
