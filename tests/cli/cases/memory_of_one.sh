# SPDX-License-Identifier: Apache-2.0
#
# Where there is one of a thing, nobody is told to use fewer.
# exit: 1
# stderr: leapquant: The states of one sequence take *memory*
# not-stderr: *fewer*
# not-stdout: *?*
"$tool" bench --pool 1000TiB --state int8 >out 2>err
[[ $? == 1 && "$(cat err)" == *"a smaller --pool"* && "$(cat err)" != *fewer* ]] || exit 98
"$tool" bench --pool 1000TiB --state int8,fp32 >out 2>err
[[ $? == 1 && "$(cat err)" == *"The pools of 2 formats"*fewer* ]] || exit 97
for i in 1 2 3; do echo '{"prompt":"x"}'; done >p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl --memory 64KiB --max-tokens 1 >out 2>err
[[ $? == 1 && "$(cat err)" == *"The states of 3 sequences"*fewer* ]] || exit 96
"$tool" generate --model "$model" --prompt x --memory 64KiB --max-tokens 1
