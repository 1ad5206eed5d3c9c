# SPDX-License-Identifier: Apache-2.0
#
# No speed is printed of a sequence that has stopped, nor of logits that are not finite.
# exit: 1
# stdout:
# stderr: leapquant: *linear layer 0*
model_copy m
huge_weights m/model-00003-of-00003.safetensors model.norm.weight
"$tool" bench generate --model m --tokens 16 --state int8 >out 2>err
must_be_equal "the exit code" $? 1
[[ ! -s out && "$(cat err)" == *"The logit of token 0 is"* ]] || { cat out err >&2; exit 99; }
huge_weights m/model-00001-of-00003.safetensors model.layers.0.input_layernorm.weight
"$tool" bench generate --model m --tokens 16 --state int8
