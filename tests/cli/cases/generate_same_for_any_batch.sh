# SPDX-License-Identifier: Apache-2.0
#
# Tokens depend neither on the batch nor on the number of threads.
printf '{"prompt":"C hello\\n"}\n{"prompt":"L 3 7 5 6\\n"}\n{"prompt":"C x1\\n"}\n' >p.jsonl
run() { "$tool" generate --model "$model" --prompts p.jsonl --state int4+ --quiet "$@"; }
a="$(run --batch 1 --threads 1)"
b="$(run --batch 3 --threads 2)"
[[ "$a" == *hello* ]] || exit 91
must_be_equal completions "$a" "$b"
