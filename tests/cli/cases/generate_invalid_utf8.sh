# SPDX-License-Identifier: Apache-2.0
#
# A prompt that is not UTF-8 is refused with the place.
# exit: 1
# stderr: leapquant: *UTF-8*3*
"$tool" generate --model "$model" --prompt $'abc\xff'
