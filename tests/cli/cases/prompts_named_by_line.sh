# SPDX-License-Identifier: Apache-2.0
#
# A prompt that is empty or too long is named by its file and line, whatever its id.
# exit: 1
# stderr: leapquant: The task in p.jsonl line 3 does not fit. A sequence of *32768*
# not-stdout: *?*
long="$(head -c 40000 /dev/zero | tr '\0' a)"
printf '{"prompt":"C ab\\n"}\n\n{"id":"x","prompt":""}\n' >p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl >out 2>err
[[ $? == 1 && ! -s out && "$(cat err)" == *"The prompt in p.jsonl line 3 is empty"* ]] || exit 98
printf '{"prompt":"C ab\\n"}\n\n{"id":"x","prompt":"%s"}\n' "$long" >p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl >out 2>err
[[ $? == 1 && ! -s out && "$(cat err)" == *"The prompt in p.jsonl line 3 does not fit. A se"* ]] ||
  exit 97
printf '{"id":"1","prompt":"C ab\\n","answer":"ab\\n"}\n\n' >p.jsonl
printf '{"id":"2","prompt":"%s","answer":"ab\\n"}\n' "$long" >>p.jsonl
"$tool" eval --model "$model" --tasks p.jsonl --quiet
