# SPDX-License-Identifier: Apache-2.0
#
# Recordings and texts at once are wrong usage.
# exit: 2
# stderr: leapquant: *--inputs*
"$tool" drift --inputs a --text b --model "$model"
