# SPDX-License-Identifier: Apache-2.0
#
# Counts that are negative, no whole numbers or too large are refused in one short sentence.
# exit: 2
# stderr: *--seed*--limit*--max-tokens*--rounds*
refuse() {
  local text code
  text="$("$tool" "$@" </dev/null 2>&1 >out)"
  code=$?
  echo "$text" >&2
  if [[ "$code" != 2 || -s out ]] || ((${#text} > 250)) ||
    [[ "$text" != *"must be a whole number from"* ]]; then
    echo "CASE: code $code for $*" >&2
    exit 99
  fi
}
for value in -1 abc 1.5 99999999999999999999 0x10; do
  refuse generate --model "$model" --prompt x --seed "$value"
  refuse eval --model "$model" --tasks "$model/tasks/short" --limit "$value"
  refuse generate --model "$model" --prompt x --max-tokens "$value"
  refuse generate --model "$model" --prompt x --top-k "$value"
  refuse record --model "$model" --text x --out y --tokens "$value"
  refuse drift --inputs x --from "$value"
  refuse state save --session x --out y --layer "$value"
  refuse plan --shape qwen3.5-9b --memory 80GB --context "$value"
done
refuse bench --rounds 0
exit 2
