# SPDX-License-Identifier: Apache-2.0
#
# One flipped bit of a saved state is noticed.
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

"$tool" state save --session s --layer 0 --out b >>out || exit 91
size=$(stat -c %s b)
for ((i = 0; i < 40; ++i)); do
  offset=$((size * i / 40 + i))
  cp b t
  flip_bit t "$offset"
  if "$tool" state verify t >>out 2>>err; then
    echo "offset $offset of $size is not covered" >&2
    exit 97
  fi
done
