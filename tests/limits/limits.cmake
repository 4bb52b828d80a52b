# SPDX-License-Identifier: Apache-2.0
# Every test ends: after twenty minutes, an hour under a sanitizer or the MINUTES of its own, run_limited prints the stacks
# of its threads and ends it with all that it started.
set(test_seconds 1200)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set(test_seconds 3600)
endif()

if(NOT CMAKE_CROSSCOMPILING) # there the limit is the test preset's, which prints no stacks
  add_library(strobe_stack_traces OBJECT limits/stack_traces.c)
  target_compile_definitions(strobe_stack_traces PRIVATE _GNU_SOURCE)
  add_subdirectory(limits)
  add_dependencies(strobe_stack_traces run_limited) # so that it is there whichever test is built
  link_libraries(strobe_stack_traces)
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.29)
    set(CMAKE_TEST_LAUNCHER "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/run_limited" ${test_seconds})
  else() # which did the same, whatever its name says
    set(CMAKE_CROSSCOMPILING_EMULATOR "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/run_limited" ${test_seconds})
  endif()
endif()

# add_command_test(NAME name [MINUTES minutes] COMMAND command...): add_test for a command that is no target of tests/.
function(add_command_test)
  cmake_parse_arguments(PARSE_ARGV 0 test "" "NAME;MINUTES" "COMMAND")
  set(seconds ${test_seconds})
  if(test_MINUTES)
    math(EXPR seconds "60 * ${test_MINUTES}")
  endif()
  add_test(NAME ${test_NAME} COMMAND run_limited ${seconds} ${test_COMMAND})
endfunction()
