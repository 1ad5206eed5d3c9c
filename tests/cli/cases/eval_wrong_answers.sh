# SPDX-License-Identifier: Apache-2.0
#
# A wrong answer is counted as wrong; trailing white space is not.
# stdout: *"correct":1,"total":2*
printf '{"id":"%s","prompt":"C abc\\n","answer":"%s\\n","check":"exact"}\n' a abd b abc >t.jsonl
"$tool" eval --model "$model" --tasks t.jsonl --state fp32 --json --quiet
