# SPDX-License-Identifier: Apache-2.0
#
# An unknown format lists what is allowed.
# exit: 2
# stderr: leapquant: *int5*int8*int6*int4*int8+*
"$tool" generate --model "$model" --prompt x --state int5
