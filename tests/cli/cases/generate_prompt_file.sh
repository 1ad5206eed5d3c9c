# SPDX-License-Identifier: Apache-2.0
#
# Prompts of a file keep their order and their ids.
# stdout: *"id":"b","completion":"hello*"id":"a","completion":"wo"*
# stdout: *"finish_reason":"length"*"prompts":2*
printf '{"id":"b","prompt":"C hello\\n"}\n' >p.jsonl
printf '{"id":"a","prompt":"C world\\n","max_tokens":2}\n' >>p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl --json --quiet
