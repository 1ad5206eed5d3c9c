# SPDX-License-Identifier: Apache-2.0
#
# bench model times random weights on a device, and wants to be told so.
# exit: 2
# stderr: leapquant: --shape qwen3.5-35b-a3b is no dense*qwen3.5-9b*
"$tool" bench model --shape qwen3.5-9b --device cuda 2>err
[[ $? == 2 && "$(cat err)" == *"--random-weights"* ]] || exit 99
"$tool" bench model --shape qwen3.5-9b --random-weights 2>err
[[ $? == 2 && "$(cat err)" == *"--device cuda"* ]] || exit 99
"$tool" bench model --shape qwen3.5-35b-a3b --random-weights --device cuda
