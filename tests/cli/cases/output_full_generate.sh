# SPDX-License-Identifier: Apache-2.0
#
# Streaming into a full disk ends with a sentence.
# exit: 1
# stderr: leapquant: *standard output*
"$tool" generate --model "$model" --prompt 'C abc' --quiet >/dev/full
