# SPDX-License-Identifier: Apache-2.0
#
# An empty prompt is refused.
# exit: 1
# stderr: leapquant: *empty*
"$tool" generate --model "$model" --prompt ""
