# SPDX-License-Identifier: Apache-2.0
#
# Options that could have no effect beside the others, and files named twice, are refused before any
# work; where they mean something they are taken.
# exit: 2
# stderr: leapquant: --tasks names *a.jsonl* twice*
# not-stdout: *?*
refuse() { # <pattern> <words of the call>...
  local pattern="$1"
  shift
  "$tool" "$@" >out 2>err
  # shellcheck disable=SC2053
  [[ $? == 2 && ! -s out && "$(cat err)" == *$pattern* ]] || {
    echo "$*: $(cat err)" >&2
    exit 99
  }
}
refuse "--window has no meaning*per step" generate --model "$model" --prompt x --state fp32 \
  --window 8
refuse "--window has no meaning*per step" inspect "$model" --state fp32,int8:step --window 8
refuse "--stagger has no meaning*per step" inspect "$model" --policy step --stagger
for state in fp32 bf16:window=16 int8:step int8:smooth=none; do
  refuse "--no-smoothing has no meaning" inspect "$model" --state "$state" --no-smoothing
done
refuse "--no-smoothing has no meaning" inspect "$model" --policy step --no-smoothing
for state in fp32 bf16:window=16 int8:step fp32,bf16; do
  refuse "--rank has no meaning for formats that have no compensators" \
    inspect "$model" --state "$state" --rank 2
done
refuse "--threads names 1 twice" bench --threads 1,2 --threads 1
refuse "--batch names 64 twice" bench model --shape qwen3.5-9b --random-weights --batch 64,1,64
refuse "--no-thinking needs --chat" generate --model "$model" --prompt x --no-thinking
for option in "--top-p 0.9" "--top-k 4" "--min-p 0.1"; do
  # shellcheck disable=SC2086
  refuse "${option% *} has no meaning at --temperature 0" \
    generate --model "$model" --prompt x $option
done
# One of the formats has a window; and a state per step has none to be staggered.
"$tool" inspect "$model" --state fp32,int8 --window 8 --stagger >out || exit 98
"$tool" inspect "$model" --policy step --no-stagger >out || exit 97
"$tool" inspect "$model" --state fp32,int8 --rank 4 >out || exit 94
"$tool" inspect "$model" --state fp32,int8 --no-smoothing >out || exit 95
"$tool" generate --model "$model" --prompt x --temperature 1 --top-p 0.9 --max-tokens 2 --quiet \
  >out || exit 96

printf '{"id":"1","prompt":"C ab\\n","answer":"ab\\n"}\n' >a.jsonl
ln a.jsonl b.jsonl
mkdir folder
ln -s ../a.jsonl folder/c.jsonl
refuse "--tasks names *b.jsonl* twice" eval --model "$model" --tasks a.jsonl --tasks b.jsonl
refuse "--tasks names *c.jsonl* twice" eval --model "$model" --tasks a.jsonl --tasks folder
refuse "--text names *a.jsonl* twice" drift --model "$model" --text a.jsonl --text ./a.jsonl
refuse "--inputs names *a.jsonl* twice" drift --inputs a.jsonl --inputs ./a.jsonl
"$tool" eval --model "$model" --tasks a.jsonl --tasks ./a.jsonl
