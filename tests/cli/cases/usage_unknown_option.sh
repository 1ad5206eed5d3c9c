# SPDX-License-Identifier: Apache-2.0
#
# An unknown option is wrong usage and nothing runs.
# exit: 2
# stderr: leapquant: *--colour*inspect --help*
# not-stdout: *tensor*
"$tool" inspect "$model" --colour
