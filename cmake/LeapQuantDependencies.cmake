# SPDX-License-Identifier: Apache-2.0
#
# Every package that the build uses, found in one place so that all folders see it. Debian 12 has
# them all; scripts/setup installs them.
include_guard(GLOBAL)

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# The library itself: SIMD and the checksum, nothing else.
find_package(hwy REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

if(LEAPQUANT_TOOL)
  find_package(CLI11 REQUIRED)
  find_package(fmt REQUIRED)
  find_package(nlohmann_json REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
endif()

if(LEAPQUANT_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()
if(LEAPQUANT_BENCH)
  find_package(benchmark REQUIRED)
endif()
