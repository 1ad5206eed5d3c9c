# SPDX-License-Identifier: Apache-2.0
#
# A number of bytes that no memory has is told from words that are no number.
# exit: 2
# stderr: leapquant: --memory 18446744073709551616 is more than any memory holds*
# not-stdout: *?*
"$tool" plan --shape qwen3.5-9b --memory 16777216TiB >out 2>err
[[ $? == 2 && "$(cat err)" == *"is more than any memory holds"* ]] || exit 99
"$tool" plan --shape qwen3.5-9b --memory 24Gib >out 2>err
[[ $? == 2 && "$(cat err)" == *"is no amount of memory; write it like 24GiB"* ]] || exit 98
"$tool" plan --shape qwen3.5-9b --memory 18446744073709551616
