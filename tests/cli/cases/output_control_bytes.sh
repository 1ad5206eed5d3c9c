# SPDX-License-Identifier: Apache-2.0
#
# Names of files and prompts are printed as one line that cannot steer the terminal, on standard
# output too; JSON has its own way of writing them.
# stdout: a\\x1b[31mb\\x0ac.session: sound, 6 recurrent layers
bad=$'a\x1b[31mb\nc'
printf '{"id":"a\\u001b[31mb\\nc","prompt":"x"}\n{"id":"d","prompt":"y"}\n' >p.jsonl
"$tool" generate --model "$model" --prompts p.jsonl --max-tokens 1 --quiet >prompts || exit 91
"$tool" state save --model "$model" --prompt x --out "$bad.session" >saved || exit 92
"$tool" state inspect "$bad.session" >inspected || exit 93
"$tool" record --model "$model" --text p.jsonl --tokens 16 --out "$bad.st" --quiet >recorded ||
  exit 94
"$tool" drift --inputs "$bad.st" --from 0 --to 16 --quiet >drifted || exit 95
model_copy "$bad"
"$tool" inspect "$bad" >model_inspected || exit 96
"$tool" plan --model "$bad" --memory 1GiB >planned || exit 97
for file in prompts saved inspected recorded drifted model_inspected planned; do
  if grep -q $'\x1b' "$file" || ! grep -qF 'a\x1b[31mb\x0ac' "$file"; then
    echo "CASE: $file" >&2
    cat "$file" >&2
    exit 99
  fi
done
"$tool" state verify "$bad.session"
