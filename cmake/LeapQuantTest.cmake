# SPDX-License-Identifier: Apache-2.0
#
# Functions that declare tests: one program, one room of them, one script, one fuzz target.
include_guard(GLOBAL)

# The environment that scripts/setup makes, else the system's Python.
find_program(
  LEAPQUANT_PYTHON
  NAMES python3
  PATHS "${PROJECT_SOURCE_DIR}/.venv/bin"
  NO_DEFAULT_PATH)
find_program(LEAPQUANT_PYTHON NAMES python3 REQUIRED)
mark_as_advanced(LEAPQUANT_PYTHON)

# `ninja leapquant_unit_tests leapquant_fuzz_tests` builds just those rooms.
foreach(label IN ITEMS unit property conformance cuda gpu golden fuzz capi cli python house)
  add_custom_target(leapquant_${label}_tests)
endforeach()

# leapquant_test(<name> LABEL <label> SOURCES <file>... [LIBS <target>...] [ARGS <argument>...]
#                [TIMEOUT <seconds>] [NO_MAIN])
# One test program. GoogleTest and its main are linked unless NO_MAIN is given. Does nothing where
# a library does not exist, such as the runtime in a build without the tool.
function(leapquant_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN" "LABEL;TIMEOUT" "SOURCES;LIBS;ARGS")
  foreach(library IN LISTS arg_LIBS)
    if(NOT TARGET ${library})
      message(STATUS "test ${name} is left out: there is no ${library} in this build")
      return()
    endif()
  endforeach()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  leapquant_target_defaults(${name})
  # Test code is compiled for quick building; what it calls keeps the build type's optimisation.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>
                                         $<$<BOOL:${LEAPQUANT_SANITIZE}>:-O0>)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE LEAPQUANT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  if(NOT arg_NO_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main rapidcheck_gtest)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
  add_dependencies(leapquant_${arg_LABEL}_tests ${name})
endfunction()

# leapquant_script_test(<name> LABEL <label> COMMAND <command>... [TIMEOUT <seconds>])
# A test that is a script. Its environment has LEAPQUANT_SOURCE_DIR, LEAPQUANT_BINARY_DIR and,
# where the tool is built, LEAPQUANT_TOOL.
function(leapquant_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;TIMEOUT" "COMMAND")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set(environment "LEAPQUANT_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
                  "LEAPQUANT_BINARY_DIR=${PROJECT_BINARY_DIR}")
  if(TARGET leapquant_tool)
    list(APPEND environment "LEAPQUANT_TOOL=$<TARGET_FILE:leapquant_tool>")
    add_dependencies(leapquant_${arg_LABEL}_tests leapquant_tool)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT}
                                          ENVIRONMENT "${environment}")
endfunction()

# Which libraries a test links, by the folder under its room: tests/unit/runtime/x_test.cpp tests
# the runtime. The rooms of src, and files without such a folder, link the library's inside.
function(leapquant_libraries_of_folder variable folder)
  if(folder STREQUAL "runtime")
    set(libraries leapquant_runtime)
  elseif(folder STREQUAL "lab")
    set(libraries leapquant_lab)
  elseif(folder STREQUAL "tool")
    set(libraries leapquant_tool_parts)
  else()
    set(libraries leapquant_internal)
  endif()
  set(${variable} ${libraries} PARENT_SCOPE)
endfunction()

# leapquant_test_room(<label> <directory>): declares every *_test.cpp of the directory and of its
# subfolders, and every *_test.py and *_test.sh directly in it.
function(leapquant_test_room label directory)
  file(GLOB sources CONFIGURE_DEPENDS "${directory}/*_test.cpp" "${directory}/*/*_test.cpp")
  foreach(source IN LISTS sources)
    get_filename_component(stem "${source}" NAME_WE)
    file(RELATIVE_PATH relative "${directory}" "${source}")
    get_filename_component(folder "${relative}" DIRECTORY)
    leapquant_libraries_of_folder(libraries "${folder}")
    if(folder)
      set(stem "${folder}_${stem}")
    endif()
    leapquant_test(
      ${label}_${stem}
      LABEL ${label}
      SOURCES "${source}"
      LIBS ${libraries})
  endforeach()
  file(GLOB scripts CONFIGURE_DEPENDS "${directory}/*_test.py" "${directory}/*_test.sh")
  foreach(script IN LISTS scripts)
    get_filename_component(stem "${script}" NAME_WE)
    set(interpreter "${LEAPQUANT_PYTHON}")
    if(script MATCHES "\\.sh$")
      set(interpreter bash)
    endif()
    leapquant_script_test(${label}_${stem} LABEL ${label} COMMAND "${interpreter}" "${script}")
  endforeach()
endfunction()

# leapquant_fuzz(<name> SOURCES <file>... LIBS <target>...): a fuzz target x_fuzz. With
# LEAPQUANT_FUZZ it is a libFuzzer program; otherwise a driver replays tests/fuzz/corpus/x and
# mutations of it for a few seconds, as a test.
function(leapquant_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  string(REGEX REPLACE "_fuzz$" "" corpus_name "${name}")
  set(corpus "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${corpus_name}")
  if(LEAPQUANT_FUZZ)
    add_executable(${name} ${arg_SOURCES})
    leapquant_target_defaults(${name})
    target_link_libraries(${name} PRIVATE ${arg_LIBS})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(leapquant_fuzz_tests ${name})
  else()
    leapquant_test(
      fuzz_${corpus_name}
      LABEL fuzz NO_MAIN
      SOURCES ${arg_SOURCES} "${PROJECT_SOURCE_DIR}/tests/fuzz/replay/main.cpp"
      LIBS ${arg_LIBS}
      ARGS --seconds 3 "${corpus}")
    if(TEST fuzz_${corpus_name})
      set_tests_properties(
        fuzz_${corpus_name}
        PROPERTIES ENVIRONMENT "ASAN_OPTIONS=abort_on_error=1;UBSAN_OPTIONS=abort_on_error=1")
    endif()
  endif()
endfunction()

# Declares every *_fuzz.cpp of a folder and of its subfolders core, runtime, lab. A file directly in
# the folder may use the library's inside and the runtime.
function(leapquant_fuzz_room directory)
  file(GLOB sources CONFIGURE_DEPENDS "${directory}/*_fuzz.cpp" "${directory}/*/*_fuzz.cpp")
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    file(RELATIVE_PATH relative "${directory}" "${source}")
    get_filename_component(folder "${relative}" DIRECTORY)
    leapquant_libraries_of_folder(libraries "${folder}")
    if(NOT folder AND TARGET leapquant_runtime)
      list(APPEND libraries leapquant_runtime)
    endif()
    leapquant_fuzz(${name} SOURCES "${source}" LIBS ${libraries})
  endforeach()
endfunction()
