# SPDX-License-Identifier: Apache-2.0
#
# States after different tokens are not compared.
# exit: 1
# stderr: leapquant: *positions*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

"$tool" state save --model "$model" --prompt 'L' --out t >>out
"$tool" state diff s t
