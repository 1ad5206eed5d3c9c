# SPDX-License-Identifier: Apache-2.0
#
# A plan that holds no request is shown and fails: the weights alone, or no room beside them.
# exit: 1
# stdout: *qwen3.5-9b*int8*
# stderr: leapquant: The weights of qwen3.5-9b alone take*10.0 GiB*
for memory in 0 1 16GiB; do
  "$tool" plan --shape qwen3.5-9b --memory $memory >out 2>err
  [[ $? == 1 && "$(cat err)" == *"The weights of qwen3.5-9b alone take"* ]] || exit 99
done
"$tool" plan --shape qwen3.5-9b --memory 17GiB --json >out 2>err
[[ $? == 1 && "$(cat err)" == *"Not one request of 32,768 tokens fits"* ]] || exit 98
[[ "$(cat out)" == *'"requests":0'* ]] || exit 97
# Some format with room is a plan.
"$tool" plan --shape qwen3.5-9b --memory 24GiB >out || exit 96
"$tool" plan --shape qwen3.5-9b --memory 10GiB
