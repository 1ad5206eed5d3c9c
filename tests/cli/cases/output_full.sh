# SPDX-License-Identifier: Apache-2.0
#
# A full disk at standard output is noticed.
# exit: 1
# stderr: leapquant: *standard output*
"$tool" inspect "$model" --json >/dev/full
