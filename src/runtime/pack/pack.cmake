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

# The planning code that says which kernels are common: every GPU engine's.
set(variant_sources
  ${PROJECT_SOURCE_DIR}/src/api/tensor.cpp
  ${PROJECT_SOURCE_DIR}/src/sm80/backward_plan.cpp
  ${PROJECT_SOURCE_DIR}/src/sm80/backward_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/sm80/forward_plan.cpp
  ${PROJECT_SOURCE_DIR}/src/sm80/forward_tiles.cpp
  ${PROJECT_SOURCE_DIR}/src/sm80/forward_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/sm80/pack_variants.cpp
  ${PROJECT_SOURCE_DIR}/src/sm80/supported.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/append_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/backward_plan.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/backward_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/few_queries.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/row_invariant.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/score_params.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/merge_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/quantize_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/gpu/supported.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/backward_plan.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/backward_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/dealt_tiles.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/eight_bit_tiles.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/forward_fields.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/forward_plan.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/forward_registers.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/forward_tiles.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/forward_variant.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/pack_variants.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/row_invariant.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/schedule.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/supported.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/stored_tiles.cpp
  ${PROJECT_SOURCE_DIR}/src/sm90/tile_fit.cpp
)
add_library(strobe_pack_variants OBJECT ${variant_sources})
target_include_directories(strobe_pack_variants PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(strobe_pack_variants PRIVATE fmt::fmt strobe_warnings)
if(CMAKE_CROSSCOMPILING)
  set(strobe_pack ${STROBE_HOST_PACK})
  set(strobe_pack_program ${STROBE_HOST_PACK})
else()
  add_executable(strobe_pack pack/main.cpp $<TARGET_OBJECTS:strobe_pack_variants>)
  set_target_properties(strobe_pack PROPERTIES OUTPUT_NAME strobe-pack)
  target_link_libraries(strobe_pack PRIVATE strobe_pack_parts strobe_kernel_store strobe_driver
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
