# SPDX-License-Identifier: Apache-2.0
#
# A layer that the session does not have.
# exit: 2
# stderr: leapquant: *0-5*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out
"$tool" state save --session s --layer 6 --out b
code=$?
must_not_exist b
exit $code
