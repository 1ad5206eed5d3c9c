# SPDX-License-Identifier: Apache-2.0
#
# A recording drifts as the model that made it.
text="$source/lab/texts/jargon_file.txt"
"$tool" record --model "$model" --text "$text" --tokens 300 --out r.safetensors \
  --quiet >out || exit 91
drift() {
  "$tool" drift "$@" --from 10 --to 300 --every 100 --json --quiet |
    grep -o '"output_errors":[^]]*]' | head -n 1
}
a="$(drift --inputs r.safetensors)"
b="$(drift --model "$model" --text "$text" --tokens 300)"
[[ -n "$a" ]] || exit 92
must_be_equal errors "$a" "$b"
