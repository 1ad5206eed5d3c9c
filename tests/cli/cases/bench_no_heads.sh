# SPDX-License-Identifier: Apache-2.0
#
# A benchmark of no heads is wrong usage.
# exit: 2
# stderr: leapquant: --k-heads*whole number from 1*
"$tool" bench --v-heads 0 2>err
[[ $? == 2 && "$(cat err)" == *--v-heads*"whole number"* ]] || exit 99
"$tool" bench --k-heads 0
