# SPDX-License-Identifier: Apache-2.0
#
# A session in another format is refused.
# exit: 1
# stderr: leapquant: *int8*int4*
"$tool" generate --model "$model" --prompt 'C abc' --max-tokens 4 --save-session s --quiet >out
"$tool" generate --model "$model" --prompt 'x' --resume s --state int4
