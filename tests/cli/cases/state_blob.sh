# SPDX-License-Identifier: Apache-2.0
#
# One layer of a session is a saved state of its own.
# stdout: *"kind":"state"*"num_v_heads":4*"format":"int8"*
# stdout: *"relative_error":0.0*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

"$tool" state save --session s --layer 5 --out b >>out || exit 91
"$tool" state inspect b --json || exit 92
"$tool" state convert b c --to int4+ >>out || exit 93
"$tool" state diff b c --json | head -n 1
