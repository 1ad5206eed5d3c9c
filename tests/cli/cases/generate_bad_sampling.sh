# SPDX-License-Identifier: Apache-2.0
#
# A sampling option out of its range names its range.
# exit: 1
# stderr: leapquant: *top*1.5*
"$tool" generate --model "$model" --prompt x --temperature 1 --top-p 1.5
