# SPDX-License-Identifier: Apache-2.0
# Finds what GPU kernels are compiled with at build time: NVRTC and the CUDA headers, in a CUDA toolkit or from PyPI.
# Neither a GPU nor a driver nor nvcc is needed, and nothing of CUDA is linked.
#
# Sets STROBE_BUILD_KERNELS; where it is on, STROBE_NVRTC and STROBE_CUDA_INCLUDES too.

set(STROBE_GPU AUTO CACHE STRING "GPU kernels in the library: AUTO (if they can be compiled), ON (or fail), OFF")
set_property(CACHE STROBE_GPU PROPERTY STRINGS AUTO ON OFF)
if(NOT STROBE_GPU MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "STROBE_GPU is ${STROBE_GPU}; AUTO, ON and OFF are accepted")
endif()

# The presets share one copy of what is fetched and compiled.
set(kernels_folder "${PROJECT_BINARY_DIR}/cuda")
cmake_path(GET PROJECT_BINARY_DIR PARENT_PATH build_folder)
if(build_folder STREQUAL "${PROJECT_SOURCE_DIR}/build")
  set(kernels_folder "${build_folder}/cuda")
endif()
set(STROBE_CUDA_FOLDER "${kernels_folder}" CACHE PATH "Where fetched CUDA packages and compiled kernels are kept")

# Looks for NVRTC 13 and the headers below one root: a toolkit, or a wheel's nvidia/cu13.
function(strobe_find_cuda root)
  file(GLOB nvrtc "${root}/lib64/libnvrtc.so.13" "${root}/lib/libnvrtc.so.13")
  set(includes "${root}/include")
  if(EXISTS "${root}/include/cccl/cuda/ptx")
    list(PREPEND includes "${root}/include/cccl")
  elseif(NOT EXISTS "${root}/include/cuda/ptx")
    return()
  endif()
  if(nvrtc AND EXISTS "${root}/include/cuda_fp16.h")
    list(GET nvrtc 0 nvrtc)
    set(STROBE_NVRTC "${nvrtc}" PARENT_SCOPE)
    set(STROBE_CUDA_INCLUDES "${includes}" PARENT_SCOPE)
  endif()
endfunction()

set(STROBE_BUILD_KERNELS OFF)
unset(STROBE_NVRTC)
if(NOT STROBE_GPU STREQUAL "OFF")
  foreach(root "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
    if(root AND NOT STROBE_NVRTC)
      strobe_find_cuda("${root}")
    endif()
  endforeach()
  if(NOT STROBE_NVRTC)
    execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/fetch-cuda.sh" "${STROBE_CUDA_FOLDER}"
      RESULT_VARIABLE fetched)
    if(fetched EQUAL 0)
      strobe_find_cuda("${STROBE_CUDA_FOLDER}/nvidia/cu13")
    endif()
  endif()
  if(STROBE_NVRTC)
    set(STROBE_BUILD_KERNELS ON)
    message(STATUS "GPU kernels: compiled with ${STROBE_NVRTC}")
  else()
    set(reason "no CUDA 13 toolkit with NVRTC was found, and its packages could not be fetched from PyPI")
    if(STROBE_GPU STREQUAL "ON")
      message(FATAL_ERROR "STROBE_GPU is ON, but ${reason}")
    endif()
    message(NOTICE "Strobe is built for the CPU alone: ${reason}")
  endif()
endif()
