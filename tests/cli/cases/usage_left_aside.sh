# SPDX-License-Identifier: Apache-2.0
#
# Options that a call would leave aside are refused: they contradict the others.
# exit: 2
# stderr: leapquant: --tokens has no meaning with --inputs*
refuse() { # <pattern> <words of the call>...
  local pattern="$1"
  shift
  "$tool" "$@" >out 2>err
  # shellcheck disable=SC2053
  [[ $? == 2 && ! -s out && "$(cat err)" == *$pattern* ]] || {
    echo "$*: $(cat err)" >&2
    exit 99
  }
}
refuse "--layer*--session" state save --model "$model" --prompt a --layer 3 --out x
for option in "--prompt a" "--text a" "--state int4" "--policy step" "--window 4" "--rank 2" \
  "--no-smoothing" "--stagger" "--threads 2"; do
  # shellcheck disable=SC2086
  refuse "--*has no meaning with --session" state save --session s $option --out x
done
refuse "--pool*bench alone" bench --pool 4MiB generate --model "$model"
refuse "--json*bench alone" bench --json generate --model "$model"
refuse "--text and --tasks need --model" drift --text a
refuse "--model has no meaning" drift --inputs a --model "$model"
refuse "--segment has no meaning" drift --inputs a --segment 8
refuse "--concatenate has no meaning" drift --inputs a --concatenate
refuse "int8 twice" inspect "$model" --state int8,int8
refuse "int8 twice" eval --model "$model" --tasks "$model/tasks/short" \
  --state int8,fp32,int8:window=16
refuse "fp32:step twice" plan --shape qwen3.5-9b --memory 24GiB --state fp32,fp32:step
must_not_exist x
"$tool" drift --inputs a --tokens 5
