# SPDX-License-Identifier: Apache-2.0
#
# A shard that the index names is missing.
# exit: 1
# stderr: leapquant: *model-00002-of-00003.safetensors*
model_copy m
rm m/model-00002-of-00003.safetensors
"$tool" generate --model m --prompt x
