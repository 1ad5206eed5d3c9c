# SPDX-License-Identifier: Apache-2.0
#
# A pool that the memory cannot hold is refused.
# exit: 1
# stderr: leapquant: *--pool*
"$tool" bench --pool 900TiB
