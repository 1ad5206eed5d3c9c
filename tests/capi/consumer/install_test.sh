#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build tree into a folder of its own and uses it as a stranger would: through
# find_package and through pkg-config, in C and in C++.
#
#   install_test.sh BUILD_DIR C_COMPILER CXX_COMPILER
set -euo pipefail

build="$1" cc="$2" cxx="$3"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
examples="$here/../../../examples"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The library's own part only: this test does not wait for the tool. A component that is not built
# would stop the installation, so the rules of src are run by themselves.
cmake --install "$build/src" --prefix "$work/prefix" >"$work/install.log" || {
  cat "$work/install.log"
  exit 1
}

cmake -G Ninja -S "$here" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DEXAMPLES="$examples" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >"$work/cmake.log"
cmake --build "$work/consumer" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
"$work/consumer/decode"
"$work/consumer/drafts"

pc="$(find "$work/prefix" -name leapquant.pc -printf '%h')"
export PKG_CONFIG_PATH="$pc"
export LD_LIBRARY_PATH="${pc%/pkgconfig}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# shellcheck disable=SC2046
"$cc" -std=c11 "$examples/c/decode.c" -o "$work/decode" $(pkg-config --cflags --libs leapquant)
# shellcheck disable=SC2046
"$cxx" -std=c++20 -fno-exceptions -fno-rtti "$examples/cpp/drafts.cpp" -o "$work/drafts" \
  $(pkg-config --cflags --libs leapquant)
"$work/decode"
"$work/drafts"
