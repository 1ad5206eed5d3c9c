# SPDX-License-Identifier: Apache-2.0
#
# A header length beyond the file.
# exit: 1
# stderr: leapquant: *model-00001-of-00003.safetensors*
model_copy m
rm m/model-00001-of-00003.safetensors
printf '\xff\xff\xff\x00\x00\x00\x00\x00{}' >m/model-00001-of-00003.safetensors
"$tool" generate --model m --prompt x
