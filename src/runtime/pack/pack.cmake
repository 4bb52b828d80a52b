# SPDX-License-Identifier: Apache-2.0
# The tool that makes what the library embeds, and its two runs.
find_package(nlohmann_json REQUIRED)

add_library(strobe_pack_parts OBJECT
  pack/build_pack.cpp
  pack/files.cpp
  pack/gather_sources.cpp
  pack/ptxas_report.cpp
  pack/source_digests.cpp
)
target_link_libraries(strobe_pack_parts PUBLIC strobe_kernel_store PRIVATE fmt::fmt strobe_warnings)

# The lists of common kernels, and the planning code behind them: the linker takes what they reach.
file(GLOB_RECURSE pack_lists CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/pack.cpp)
file(GLOB expression_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/expression/*.cpp)
add_library(strobe_pack_variants STATIC ${pack_lists} ${PROJECT_SOURCE_DIR}/src/api/tensor.cpp ${expression_sources}
  $<TARGET_OBJECTS:strobe_families>)
set_target_properties(strobe_pack_variants PROPERTIES UNITY_BUILD OFF) # what is reached is told by the file
target_include_directories(strobe_pack_variants PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(strobe_pack_variants PRIVATE fmt::fmt strobe_warnings)
if(CMAKE_CROSSCOMPILING)
  set(strobe_pack ${STROBE_HOST_PACK})
  set(strobe_pack_program ${STROBE_HOST_PACK})
else()
  add_executable(strobe_pack pack/main.cpp)
  set_target_properties(strobe_pack PROPERTIES OUTPUT_NAME strobe-pack)
  target_link_libraries(strobe_pack PRIVATE strobe_pack_variants strobe_pack_parts strobe_kernel_store strobe_driver
    fmt::fmt nlohmann_json::nlohmann_json strobe_warnings ${CMAKE_DL_LIBS})
  set(strobe_pack strobe_pack)
  set(strobe_pack_program $<TARGET_FILE:strobe_pack>)
endif()

# NVRTC keeps memory until the process ends, which is no leak of ours.
set(strobe_pack_command ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0 ${strobe_pack_program})

file(GLOB_RECURSE kernel_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/*.h)
add_custom_command(OUTPUT ${sources_archive}
  COMMAND ${strobe_pack_command} sources ${sources_archive} ${STROBE_NVRTC} ${PROJECT_SOURCE_DIR}/src/kernels
    ${STROBE_CUDA_INCLUDES}
  DEPENDS ${strobe_pack} ${kernel_headers}
  COMMENT "Gathering the headers that kernels include"
  VERBATIM)

add_custom_command(OUTPUT ${pack_archive} ${PROJECT_BINARY_DIR}/kernels.json
  COMMAND ${strobe_pack_command} kernels ${pack_archive} ${PROJECT_BINARY_DIR}/kernels.json ${sources_archive}
    ${STROBE_CUDA_FOLDER}/kernels "${STROBE_PACK}" ${STROBE_NVRTC} ${STROBE_NVRTC_NEWER}
  DEPENDS ${strobe_pack} ${sources_archive}
  COMMENT "Compiling GPU kernels"
  VERBATIM)
