# SPDX-License-Identifier: Apache-2.0
#
# Bytes behind a saved state are refused.
# exit: 1
# stderr: leapquant: *1 bytes behind*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

"$tool" state save --session s --layer 0 --out b >>out || exit 91
printf x >>b
"$tool" state verify b
