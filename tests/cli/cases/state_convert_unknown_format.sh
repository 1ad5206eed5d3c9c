# SPDX-License-Identifier: Apache-2.0
#
# An unknown format to convert to writes nothing.
# exit: 2
# stderr: leapquant: *int9*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out
"$tool" state convert s t --to int9
code=$?
must_not_exist t
exit $code
