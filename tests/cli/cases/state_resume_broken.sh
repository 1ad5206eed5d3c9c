# SPDX-License-Identifier: Apache-2.0
#
# A broken session is refused before anything runs.
# exit: 1
# stderr: leapquant: *
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

flip_bit s 20000
"$tool" generate --model "$model" --prompt x --resume s
