# SPDX-License-Identifier: Apache-2.0
#
# The CUDA backend: whether it is built (LEAPQUANT_CUDA), for which architectures, and how its files
# are compiled. Sets LEAPQUANT_WITH_CUDA for the folders.
include_guard(GLOBAL)

set(LEAPQUANT_CUDA
    AUTO
    CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE LEAPQUANT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LEAPQUANT_CUDA_ARCHITECTURES
    ""
    CACHE STRING "Architectures of the CUDA backend (empty: all, in a build with tests 90a alone)")
if(NOT LEAPQUANT_CUDA_ARCHITECTURES OR LEAPQUANT_CUDA_ARCHITECTURES STREQUAL "80;86;89;90a;100;120")
  set(leapquant_cuda_architectures 80 86 89 90a 100 120)
  if(LEAPQUANT_TESTS)
    set(leapquant_cuda_architectures 90a)
  endif()
else()
  set(leapquant_cuda_architectures ${LEAPQUANT_CUDA_ARCHITECTURES})
endif()

set(LEAPQUANT_WITH_CUDA OFF)
string(TOUPPER "${LEAPQUANT_CUDA}" leapquant_cuda_wish)
if(NOT leapquant_cuda_wish MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|1|0)$")
  message(FATAL_ERROR "LEAPQUANT_CUDA is '${LEAPQUANT_CUDA}'; expected AUTO, ON or OFF")
endif()
if(leapquant_cuda_wish STREQUAL "AUTO" OR LEAPQUANT_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(LEAPQUANT_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH PATHS /usr/local/cuda/bin)
    mark_as_advanced(LEAPQUANT_NVCC)
    if(LEAPQUANT_NVCC AND NOT DEFINED ENV{CUDACXX})
      set(CMAKE_CUDA_COMPILER "${LEAPQUANT_NVCC}")
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${leapquant_cuda_architectures}")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(LEAPQUANT_WITH_CUDA ON)
    list(JOIN leapquant_cuda_architectures ", " leapquant_cuda_list)
    message(STATUS "CUDA backend: built for ${leapquant_cuda_list}")
  elseif(leapquant_cuda_wish STREQUAL "AUTO")
    message(STATUS "CUDA backend: left out, since nvcc is not found (LEAPQUANT_CUDA is AUTO)")
  else()
    message(
      FATAL_ERROR
        "LEAPQUANT_CUDA is ${LEAPQUANT_CUDA}, but nvcc is not found. Install the CUDA toolkit and "
        "put nvcc on PATH (or set CUDACXX to it), or configure with LEAPQUANT_CUDA=OFF")
  endif()
else()
  message(STATUS "CUDA backend: left out, since LEAPQUANT_CUDA is OFF")
endif()
if(NOT LEAPQUANT_WITH_CUDA)
  return()
endif()

# CMake 3.25 does not know how to ask nvcc for C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
if(LEAPQUANT_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${LEAPQUANT_CCACHE}")
endif()

# No product and sum becomes one rounding unless the source says so: the codec's arithmetic is part
# of the format, and the bits of a result must not hang on how the compiler sees a loop.
set(LEAPQUANT_CUDA_OPTIONS
    -fmad=false --expt-relaxed-constexpr
    "-Xcompiler=-fno-exceptions,-fno-rtti,-Wall,-Wextra,-Wshadow,-fvisibility=hidden"
    "$<$<BOOL:${LEAPQUANT_WERROR}>:-Xcompiler=-Werror>"
    "$<$<BOOL:${LEAPQUANT_WERROR}>:-Werror=all-warnings>")

# leapquant_cuda_target(<target> <architectures>): how nvcc compiles a target of ours.
function(leapquant_cuda_target target architectures)
  set_target_properties(
    ${target}
    PROPERTIES CUDA_STANDARD 20
               CUDA_STANDARD_REQUIRED ON
               CUDA_EXTENSIONS OFF
               CUDA_ARCHITECTURES "${architectures}"
               POSITION_INDEPENDENT_CODE ON)
endfunction()

# leapquant_cuda_objects(<target> <architectures> <file>...): object files of src/cuda.
function(leapquant_cuda_objects target architectures)
  add_library(${target} OBJECT ${ARGN})
  leapquant_cuda_target(${target} "${architectures}")
  target_compile_options(${target} PRIVATE ${LEAPQUANT_CUDA_OPTIONS})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src"
                                               "${PROJECT_SOURCE_DIR}/include")
endfunction()
