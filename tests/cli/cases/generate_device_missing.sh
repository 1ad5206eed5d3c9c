# SPDX-License-Identifier: Apache-2.0
#
# Without a CUDA device (here: hidden), or in a build without CUDA, --device cuda is a sentence that
# names the way out.
# exit: 1
# stderr: leapquant: *CUDA*use the CPU.*
CUDA_VISIBLE_DEVICES='' "$tool" generate --model "$model" --device cuda --prompt x
