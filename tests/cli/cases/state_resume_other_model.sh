# SPDX-License-Identifier: Apache-2.0
#
# A session of another model is refused.
# exit: 1
# stderr: leapquant: *model*
"$tool" state save --model "$model" --prompt $'L 2 57 50 9\n' --out s --json >out

model_copy m
replace_file m/model-00003-of-00003.safetensors cat
flip_bit m/model-00003-of-00003.safetensors 5513700
"$tool" generate --model m --prompt x --resume s
code=$?
((code == 0)) && echo "the fingerprint does not see this byte" >&2
exit $code
