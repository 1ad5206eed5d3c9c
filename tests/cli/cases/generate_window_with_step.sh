# SPDX-License-Identifier: Apache-2.0
#
# A window contradicts the policy step.
# exit: 2
# stderr: leapquant: *window*
"$tool" generate --model "$model" --prompt x --policy step --window 8
