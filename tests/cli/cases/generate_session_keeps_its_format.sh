# SPDX-License-Identifier: Apache-2.0
#
# A session goes on in the format and with the KV type in which it was saved where none is named,
# and the other options of a state apply to that format.
# exit: 1
# stderr: leapquant: *keeps its state as int4+, but int4+:window=8 was asked for; resume it without*
run() { "$tool" generate --model "$model" --quiet "$@"; }
whole="$(run --prompt $'L 2 57 50 9\n' --max-tokens 40 --state int4+ --kv bf16)"
first="$(run --prompt $'L 2 57 50 9\n' --max-tokens 17 --state int4+ --kv bf16 --save-session s)"
second="$(run --prompt '' --resume s --max-tokens 23)"
[[ -n "$second" ]] || exit 91
must_be_equal completion "$whole" "$first$second"
run --prompt '' --resume s --max-tokens 23 --kv fp32 >out 2>err
[[ $? == 1 && "$(cat err)" == *"KV cache in bf16, but fp32 was asked for; resume it without"* ]] ||
  exit 92
run --prompt '' --resume s --max-tokens 23 --window 8
