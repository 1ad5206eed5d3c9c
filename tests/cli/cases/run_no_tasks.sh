# SPDX-License-Identifier: Apache-2.0
#
# A model without tasks.
# exit: 1
# stderr: leapquant: *tasks*
model_copy m
"$tool" run --model m
