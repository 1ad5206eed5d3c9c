# SPDX-License-Identifier: Apache-2.0
#
# A broken line of a task file is named.
# exit: 1
# stderr: leapquant: *t.jsonl line 1*maybe*
printf '{"id":"a","prompt":"C a\\n","answer":"a","check":"maybe"}\n' >t.jsonl
"$tool" eval --model "$model" --tasks t.jsonl
