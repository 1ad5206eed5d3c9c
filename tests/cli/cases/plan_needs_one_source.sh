# SPDX-License-Identifier: Apache-2.0
#
# plan needs a model or a shape, not both.
# exit: 2
# stderr: leapquant: *--model*--shape*
"$tool" plan --memory 1GiB
