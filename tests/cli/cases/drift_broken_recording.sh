# SPDX-License-Identifier: Apache-2.0
#
# A file that is no recording.
# exit: 1
# stderr: leapquant: r: *
head -c 100 /dev/zero >r; "$tool" drift --inputs r
