# SPDX-License-Identifier: Apache-2.0
#
# Where an option is missing because another word stands for it, that word is told.
# exit: 2
# stderr: leapquant: *--model is required*
# not-stderr: *'*no option*
check() { # <word> <verb>...
  local word="$1"
  shift
  "$tool" "$@" >out 2>err
  [[ $? == 2 && "$(cat err)" == *"'$word' is no option of $1"* && ! -s out ]] ||
    { echo "$*: $(cat err)" >&2; exit 99; }
}
check --modle generate --prompt a --modle "$model"
check --modle eval --modle "$model"
check --memroy plan --shape qwen3.5-9b --memroy 1GiB
check --ouput record --model "$model" --text t --ouput r
check --jsn state --jsn
"$tool" generate --prompt a
