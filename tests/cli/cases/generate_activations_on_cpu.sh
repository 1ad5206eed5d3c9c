# SPDX-License-Identifier: Apache-2.0
#
# The CPU has no choice of activations.
# exit: 2
# stderr: leapquant: --activations needs --device cuda*
"$tool" generate --model "$model" --activations bf16 --prompt x
