# SPDX-License-Identifier: Apache-2.0
#
# An unknown shape lists those that are known.
# exit: 2
# stderr: leapquant: *gpt-5*qwen3.5-9b*
"$tool" plan --shape gpt-5 --memory 1GiB
