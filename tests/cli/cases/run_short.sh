# SPDX-License-Identifier: Apache-2.0
#
# The main job on the short tier: every answer right or wrong, then a table.
# stdout: *add*right*copy*right*sort*swap*
# stdout: *int8 *of 6*1.188*466,944*
"$tool" run --model "$model" --tier short --quiet
