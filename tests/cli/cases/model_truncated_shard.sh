# SPDX-License-Identifier: Apache-2.0
#
# A shard that ends early.
# exit: 1
# stderr: leapquant: *model-00003-of-00003.safetensors*
model_copy m
replace_file m/model-00003-of-00003.safetensors head -c 5000000
"$tool" generate --model m --prompt x
