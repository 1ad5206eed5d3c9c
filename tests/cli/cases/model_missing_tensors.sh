# SPDX-License-Identifier: Apache-2.0
#
# A checkpoint that lacks tensors of the model.
# exit: 1
# stderr: leapquant: *lacks the tensor*
model_copy m
rm m/model.safetensors.index.json m/model-*.safetensors
safetensors m/model.safetensors \
  '{"model.norm.weight":{"dtype":"F32","shape":[384],"data_offsets":[0,1536]}}' 1536
"$tool" generate --model m --prompt x
