# SPDX-License-Identifier: Apache-2.0
#
# A broken line of a prompt file is named and nothing runs.
# exit: 1
# stderr: leapquant: *p.jsonl line 2*
# not-stdout: *?*
printf '{"prompt":"C a"}\n{"prompt":\n' >p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl
