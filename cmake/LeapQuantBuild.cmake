# SPDX-License-Identifier: Apache-2.0
#
# What all rooms share: the default build type, the targets that carry compiler flags, and the
# function that makes a room's library from its folder.
include_guard(GLOBAL)

get_property(leapquant_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(PROJECT_IS_TOP_LEVEL
   AND NOT CMAKE_BUILD_TYPE
   AND NOT leapquant_multi_config)
  set(CMAKE_BUILD_TYPE
      Release
      CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(LEAPQUANT_CCACHE ccache)
    mark_as_advanced(LEAPQUANT_CCACHE)
    if(LEAPQUANT_CCACHE)
      set(CMAKE_C_COMPILER_LAUNCHER "${LEAPQUANT_CCACHE}")
      set(CMAKE_CXX_COMPILER_LAUNCHER "${LEAPQUANT_CCACHE}")
    endif()
  endif()
endif()

# Language and warnings, for every target of our own.
add_library(leapquant_warnings INTERFACE)
target_compile_options(
  leapquant_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            $<$<BOOL:${LEAPQUANT_WERROR}>:-Werror>
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
            $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies inside std::string where there are none (GCC bug 105651).
  target_compile_options(leapquant_warnings INTERFACE -Wno-restrict)
endif()
target_compile_features(leapquant_warnings INTERFACE cxx_std_20 c_std_99)

# Sanitizers: the whole program is built with them or without.
add_library(leapquant_sanitizers INTERFACE)
if(LEAPQUANT_SANITIZE)
  list(JOIN LEAPQUANT_SANITIZE "," leapquant_sanitize_list)
  target_compile_options(
    leapquant_sanitizers
    INTERFACE -fsanitize=${leapquant_sanitize_list} -fno-sanitize-recover=all
              -fno-omit-frame-pointer)
  target_link_options(leapquant_sanitizers INTERFACE -fsanitize=${leapquant_sanitize_list})
  if("undefined" IN_LIST LEAPQUANT_SANITIZE)
    # The library has no run-time type information, which this one check needs.
    target_compile_options(
      leapquant_sanitizers INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>)
  endif()
endif()
if(LEAPQUANT_FUZZ)
  target_compile_options(leapquant_sanitizers INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Puts the properties that all our targets share on one of them.
function(leapquant_target_defaults target)
  set_target_properties(
    ${target}
    PROPERTIES CXX_EXTENSIONS OFF
               C_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               C_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:leapquant_warnings>
                                          $<BUILD_INTERFACE:leapquant_sanitizers>)
endfunction()

# leapquant_glob(<variable> <pattern>...): the files of this folder that match, found anew when a
# file appears or goes.
macro(leapquant_glob variable)
  set(leapquant_patterns)
  foreach(pattern ${ARGN})
    list(APPEND leapquant_patterns "${CMAKE_CURRENT_SOURCE_DIR}/${pattern}")
  endforeach()
  file(GLOB ${variable} CONFIGURE_DEPENDS ${leapquant_patterns})
endmacro()
