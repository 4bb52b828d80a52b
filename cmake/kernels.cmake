# SPDX-License-Identifier: Apache-2.0
# Finds what GPU kernels are compiled with at build time: NVRTC and the CUDA headers, in a CUDA toolkit or from PyPI.
# Neither a GPU nor a driver nor nvcc is needed, and nothing of CUDA is linked.
#
# Sets STROBE_BUILD_KERNELS; where it is on, STROBE_NVRTC, STROBE_CUDA_INCLUDES and STROBE_CUDA_LIBRARIES too, and
# STROBE_NVRTC_NEWER if there is an NVRTC of CUDA 13 beside that of CUDA 12.

set(STROBE_GPU AUTO CACHE STRING "GPU kernels in the library: AUTO (if they can be compiled), ON (or fail), OFF")
set_property(CACHE STROBE_GPU PROPERTY STRINGS AUTO ON OFF)
if(NOT STROBE_GPU MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "STROBE_GPU is ${STROBE_GPU}; AUTO, ON and OFF are accepted")
endif()

set(STROBE_PACK "." CACHE STRING "Kernels compiled ahead: those whose names this regular expression finds; '^$': no one")

# The presets share one copy of what is fetched and compiled.
set(kernels_folder "${PROJECT_BINARY_DIR}/cuda")
cmake_path(GET PROJECT_BINARY_DIR PARENT_PATH build_folder)
if(build_folder STREQUAL "${PROJECT_SOURCE_DIR}/build")
  set(kernels_folder "${build_folder}/cuda")
endif()
set(STROBE_CUDA_FOLDER "${kernels_folder}" CACHE PATH "Where fetched CUDA packages and compiled kernels are kept")

set(STROBE_HOST_PACK "" CACHE FILEPATH
  "Where Strobe is cross-compiled: the program strobe-pack of a build for this machine, which compiles the GPU kernels")

option(STROBE_CUDA_FETCH "Prefer the pinned NVRTC 12.9 and headers from PyPI to an installed CUDA toolkit" OFF)

# The folders with CUDA's headers below one root, if they are there and new enough.
function(strobe_find_cuda_includes root)
  if(NOT EXISTS "${root}/include/cuda_fp16.h")
    return()
  endif()
  foreach(folder "${root}/include/cccl" "${root}/include")
    if(EXISTS "${folder}/cuda/__ptx/instructions/cp_async_bulk.h")
      set(includes "${folder}" "${root}/include")
      list(REMOVE_DUPLICATES includes)
      set(STROBE_CUDA_INCLUDES "${includes}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# A toolkit of CUDA 12.9 or 13: before 12.9, ptxas serialises WGMMAs.
function(strobe_find_toolkit root)
  file(GLOB nvrtc "${root}/lib64/libnvrtc.so.13" "${root}/lib/libnvrtc.so.13")
  file(GLOB builtins "${root}/lib64/libnvrtc-builtins.so.12.9" "${root}/lib/libnvrtc-builtins.so.12.9")
  foreach(library IN LISTS builtins)
    cmake_path(GET library PARENT_PATH folder)
    list(PREPEND nvrtc "${folder}/libnvrtc.so.12")
  endforeach()
  strobe_find_cuda_includes("${root}")
  if(nvrtc AND STROBE_CUDA_INCLUDES)
    list(GET nvrtc 0 nvrtc)
    cmake_path(GET nvrtc PARENT_PATH libraries)
    set(STROBE_NVRTC "${nvrtc}" PARENT_SCOPE)
    set(STROBE_CUDA_LIBRARIES "${libraries}" PARENT_SCOPE)
    set(STROBE_CUDA_INCLUDES "${STROBE_CUDA_INCLUDES}" PARENT_SCOPE)
  endif()
endfunction()

# From PyPI: NVRTC 12.9 for the pack, which drivers of CUDA 12 load too, and NVRTC 13 for the tests.
function(strobe_fetch_cuda)
  execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/fetch-cuda.sh" "${STROBE_CUDA_FOLDER}"
    RESULT_VARIABLE fetched)
  if(fetched EQUAL 0)
    set(packages "${STROBE_CUDA_FOLDER}/nvidia")
    strobe_find_cuda_includes("${packages}/cu13")
    set(STROBE_CUDA_INCLUDES "${STROBE_CUDA_INCLUDES}" PARENT_SCOPE)
    set(STROBE_CUDA_LIBRARIES "${packages}/cu13/lib" PARENT_SCOPE)
    set(STROBE_NVRTC "${packages}/cuda_nvrtc/lib/libnvrtc.so.12" PARENT_SCOPE)
    set(STROBE_NVRTC_NEWER "${packages}/cu13/lib/libnvrtc.so.13" PARENT_SCOPE)
  endif()
endfunction()

# NVRTC and headers, or the reason why kernels cannot be compiled.
macro(strobe_find_cuda)
  if(STROBE_CUDA_FETCH)
    strobe_fetch_cuda()
  endif()
  foreach(root "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
    if(root AND NOT STROBE_NVRTC)
      strobe_find_toolkit("${root}")
    endif()
  endforeach()
  if(NOT STROBE_NVRTC AND NOT STROBE_CUDA_FETCH)
    strobe_fetch_cuda()
  endif()
  set(reason "no CUDA 12.9 or 13 toolkit was found, and NVRTC could not be fetched from PyPI")
endmacro()

set(STROBE_BUILD_KERNELS OFF)
unset(STROBE_NVRTC)
unset(STROBE_NVRTC_NEWER)
if(NOT STROBE_GPU STREQUAL "OFF")
  # The pack's kernels are for GPUs: those that NVRTC of this machine compiles serve every host processor.
  if(CMAKE_CROSSCOMPILING AND NOT STROBE_HOST_PACK)
    set(reason "cross-compiling needs STROBE_HOST_PACK, the strobe-pack of a build for this machine")
  else()
    strobe_find_cuda()
  endif()
  if(STROBE_NVRTC)
    set(STROBE_BUILD_KERNELS ON)
    message(STATUS "GPU kernels: compiled with ${STROBE_NVRTC}")
    if(STROBE_NVRTC MATCHES "[.]so[.]13$")
      message(STATUS "GPU kernels: those compiled ahead need a driver for CUDA 13; with STROBE_CUDA_FETCH=ON, CUDA 12")
    endif()
  else()
    if(STROBE_GPU STREQUAL "ON")
      message(FATAL_ERROR "STROBE_GPU is ON, but ${reason}")
    endif()
    message(NOTICE "Strobe is built for the CPU alone: ${reason}")
  endif()
endif()
