# SPDX-License-Identifier: Apache-2.0
#
# No memory at all is not the default amount of it.
# exit: 2
# stderr: leapquant: --memory*more than nothing*
# not-stdout: *?*
"$tool" generate --model "$model" --prompt x --memory 0
