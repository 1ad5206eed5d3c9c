# SPDX-License-Identifier: Apache-2.0
#
# What `cmake --install` lays down for users of the library: headers, library, the CMake package
# LeapQuant and leapquant.pc. The tool's own folder installs the tool.
include(CMakePackageConfigHelpers)

set(leapquant_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/LeapQuant")

install(
  TARGETS leapquant
  EXPORT LeapQuantTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/include/leapquant"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING
  PATTERN "*.h"
  PATTERN "*.hpp")
install(
  EXPORT LeapQuantTargets
  NAMESPACE leapquant::
  DESTINATION "${leapquant_package_dir}")

if(BUILD_SHARED_LIBS)
  set(LEAPQUANT_IS_SHARED ON)
else()
  set(LEAPQUANT_IS_SHARED OFF)
endif()
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/LeapQuantConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/package/LeapQuantConfig.cmake"
  INSTALL_DESTINATION "${leapquant_package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/LeapQuantConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/package/LeapQuantConfig.cmake"
              "${PROJECT_BINARY_DIR}/package/LeapQuantConfigVersion.cmake"
        DESTINATION "${leapquant_package_dir}")

# The file finds its own prefix, so that a tree installed elsewhere (--prefix, a package) works.
file(RELATIVE_PATH LEAPQUANT_PC_TO_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig"
     "${CMAKE_INSTALL_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/leapquant.pc.in"
               "${PROJECT_BINARY_DIR}/package/leapquant.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/leapquant.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/NOTICE"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}")
