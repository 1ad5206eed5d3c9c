# SPDX-License-Identifier: Apache-2.0
#
# A prompt beyond the context of the model is refused.
# exit: 1
# stderr: leapquant: *32*768*
head -c 40000 /dev/zero | tr '\0' a | "$tool" generate --model "$model"
