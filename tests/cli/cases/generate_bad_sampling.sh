# SPDX-License-Identifier: Apache-2.0
#
# A sampling option out of its range is wrong usage and names its range.
# exit: 2
# stderr: leapquant: --top-p*above 0 and at most 1, found '1.5'*
# not-stdout: *?*
for value in nan inf -inf abc 1e999 ' 1' 0.5x -5; do
  for option in --temperature --top-p --min-p --repetition-penalty --presence-penalty; do
    "$tool" generate --model "$model" --prompt x "$option" "$value" >out 2>err
    code=$?
    if [[ "$code" != 2 || -s out || "$(cat err)" != "leapquant: $option: must be a number"* ]]; then
      echo "CASE: code $code for $option $value: $(cat err)" >&2
      exit 99
    fi
  done
done
"$tool" generate --model "$model" --prompt x --temperature 1 --top-p 1.5
