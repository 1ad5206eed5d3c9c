# SPDX-License-Identifier: Apache-2.0
#
# A rank applies to formats with FP16 compensators only and says so.
# exit: 2
# stderr: leapquant: *rank*FP16*
"$tool" generate --model "$model" --prompt x --state int8+ --rank 8
