# SPDX-License-Identifier: Apache-2.0
#
# A wrong answer is counted as wrong; trailing white space is not.
# stdout: *"correct":1,"total":2*
printf '{"id":"a","prompt":"C abc\\n","answer":"abd\\n","check":"exact"}\n{"id":"b","prompt":"C abc\\n","answer":"abc","check":"exact"}\n' >t.jsonl
"$tool" eval --model "$model" --tasks t.jsonl --state fp32 --json --quiet
