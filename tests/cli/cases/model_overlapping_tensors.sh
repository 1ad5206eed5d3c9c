# SPDX-License-Identifier: Apache-2.0
#
# Two tensors that share bytes.
# exit: 1
# stderr: leapquant: *overlap*
model_copy m
rm m/model.safetensors.index.json m/model-*.safetensors
a='"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
b='"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}'
safetensors m/model.safetensors "{$a,$b}" 12
"$tool" inspect m
