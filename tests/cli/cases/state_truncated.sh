# SPDX-License-Identifier: Apache-2.0
#
# A session that ends early is not sound.
# exit: 1
# stderr: leapquant: *
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

replace_file s head -c -1
"$tool" state verify s
