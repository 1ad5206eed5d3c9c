# SPDX-License-Identifier: Apache-2.0
#
# Logits that are not finite are no wrong answers of the model.
# exit: 1
# stdout: *copy*FAULT*FAULT*0 of 6*
# not-stdout: *WRONG*
# stderr: *Prompt copy-short-000 of copy, state int8: The logit of token 0 is*
# stderr: *leapquant: Not every prompt was completed.
model_copy m
ln -s "$model/tasks" m/tasks
huge_weights m/model-00003-of-00003.safetensors model.norm.weight
json="$("$tool" run --model m --tier short --json --quiet 2>err)"
must_be_equal "the exit code" $? 1
[[ "$json" == *'"right":false,"tokens":0,"fault":"The logit of token 0'* ]] ||
  { echo "$json" >&2; exit 99; }
"$tool" run --model m --tier short --quiet
