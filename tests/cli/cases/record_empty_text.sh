# SPDX-License-Identifier: Apache-2.0
#
# A text without tokens cannot be recorded.
# exit: 1
# stderr: leapquant: *empty*
touch empty
"$tool" record --model "$model" --text empty --out r
code=$?
must_not_exist r
exit $code
