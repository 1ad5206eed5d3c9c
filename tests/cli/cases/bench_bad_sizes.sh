# SPDX-License-Identifier: Apache-2.0
#
# Pools below one sequence, heads that do not divide, formats named twice: wrong usage each.
# exit: 2
# stderr: leapquant: --v-heads 4 is no multiple of --k-heads 3.*
for pool in 0 1 1MiB; do
  "$tool" bench --pool $pool --state fp32:step >out 2>err
  [[ $? == 2 && "$(cat err)" == *"less than one sequence"*"2.00 MiB"* && ! -s out ]] || exit 99
done
for pool in '' -1 1e99 nan 4XiB 9e18; do
  "$tool" bench --pool "$pool" >out 2>err
  [[ $? == 2 && "$(cat err)" == *--pool* && ! -s out ]] || exit 98
done
"$tool" bench --pool 8000000TB >out 2>err
[[ $? == 1 && "$(cat err)" == *--pool* && ! -s out ]] || exit 97
"$tool" bench --state int8,int6,int8 >out 2>err
[[ $? == 2 && "$(cat err)" == *"int8 twice"* && ! -s out ]] || exit 96
"$tool" bench --k-heads 3 --v-heads 4
