# SPDX-License-Identifier: Apache-2.0
#
# Without a verb the tool says how it is called.
# exit: 2
# stderr: leapquant: *--help*
"$tool"
