# SPDX-License-Identifier: Apache-2.0
#
# Rows of the benchmark have all keys; a small pool is enough to see that.
# stdout: *"state":"fp32","policy":"step","threads":1,"gb_per_s":*"copy_share":*
# stdout: *"floor_share":*"speedup":1.0*
# stdout: *"state":"int8","policy":"window","threads":1*
"$tool" bench --pool 4MiB --rounds 1 --threads 1 --state fp32:step,int8:stagger=1 --json --quiet
