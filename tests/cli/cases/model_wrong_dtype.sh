# SPDX-License-Identifier: Apache-2.0
#
# A weight of a type that no weight has.
# exit: 1
# stderr: leapquant: *embed_tokens*I32*
model_copy m
rm m/model.safetensors.index.json m/model-*.safetensors
tensor='{"dtype":"I32","shape":[256,384],"data_offsets":[0,393216]}'
safetensors m/model.safetensors "{\"model.embed_tokens.weight\":$tensor}" 393216
"$tool" generate --model m --prompt x
