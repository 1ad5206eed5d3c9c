# SPDX-License-Identifier: Apache-2.0
#
# A prompt whose sequence stops counts as not solved, with the reason, a KL that is no number and
# the exit code of a failure; the results file keeps it, so that it is not tried again.
# exit: 1
# stdout: *correct*of*mean KL*fp32*0*2*NaN*0.0 %*
# stderr: *Prompt copy-short-000 of short/copy, state fp32 (step): *linear layer 0*every prompt*
# not-stdout: *nan*
model_copy m
huge_weights m/model-00001-of-00003.safetensors model.layers.0.input_layernorm.weight
run() { # <options>: what is printed, with the time left out
  "$tool" eval --model m --tasks "$model/tasks/short/copy.jsonl" --state fp32,int8 --limit 2 \
    --quiet "$@" 2>>err | sed -E 's/"tokens_per_second":[^,]*/_/'
}
first="$(run --csv r.csv --json)"
[[ "$first" == *'"correct":0,"total":2,"mean_kl":null,'*'"faults":[{"id":"copy-short-000",'* ]] ||
  { echo "$first" >&2; exit 99; }
must_be_equal lines "$(wc -l <r.csv)" 5
run --csv r.csv --json >again
must_be_equal "lines after a second run" "$(wc -l <r.csv)" 5
[[ "$(cat again)" == *'"total":2,"mean_kl":null,'*'"faults":'* ]] || { cat again >&2; exit 99; }
[[ "$(run --no-kl --json)" == *'"correct":0,"total":2,'*'"faults":'* ]] || exit 99
"$tool" eval --model m --tasks "$model/tasks/short/copy.jsonl" --state fp32,int8 --limit 2 --quiet
