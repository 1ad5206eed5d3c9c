#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The build that ./run makes, without tests and with every choice left to the build files, can be
# configured on this machine. The tests' own build chooses more, and would not notice.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cmake -G Ninja -S "$LEAPQUANT_SOURCE_DIR" -B "$folder" -DCMAKE_BUILD_TYPE=Release \
  -DLEAPQUANT_TESTS=OFF -DLEAPQUANT_BENCH=OFF
ninja -C "$folder" -n leapquant_tool >/dev/null
