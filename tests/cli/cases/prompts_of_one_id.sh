# SPDX-License-Identifier: Apache-2.0
#
# Two prompts with one id, of which one may be the number of its line, are refused: their answers
# could not be told apart.
# exit: 1
# stderr: leapquant: p.jsonl line 3 has the id "a" of line 1; give every prompt its own.*
# not-stdout: *?*
printf '{"id":"2","prompt":"C ab\\n"}\n{"prompt":"C ab\\n"}\n' >p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl >out 2>err
[[ $? == 1 && ! -s out && "$(cat err)" == *'line 2 has the id "2" of line 1'* ]] || exit 98
printf '{"id":"a","prompt":"C ab\\n"}\n{"prompt":"C ab\\n"}\n{"id":"a","prompt":"C\\n"}\n' >p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl
