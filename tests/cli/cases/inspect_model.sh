# SPDX-License-Identifier: Apache-2.0
#
# What the model holds, which layers keep a state, what a sequence costs.
# stdout: *layers 0-2, 4-6*
# stdout: *layers 3, 7*
# stdout: *int8  *466,944*1.188*
# stdout: *int4-compact*
"$tool" inspect "$model"
