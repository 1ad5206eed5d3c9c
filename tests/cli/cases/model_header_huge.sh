# SPDX-License-Identifier: Apache-2.0
#
# A header length of 2^63 bytes.
# exit: 1
# stderr: leapquant: *model-00001-of-00003.safetensors*
model_copy m
rm m/model-00001-of-00003.safetensors
printf '\x00\x00\x00\x00\x00\x00\x00\x80{}' >m/model-00001-of-00003.safetensors
"$tool" inspect m
