# SPDX-License-Identifier: Apache-2.0
#
# An unknown verb is wrong usage.
# exit: 2
# stderr: leapquant: *--help*
"$tool" fly
