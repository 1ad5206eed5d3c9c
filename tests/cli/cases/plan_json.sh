# SPDX-License-Identifier: Apache-2.0
#
# Plans as JSON count every part.
# stdout: *"state":"fp32","policy":"step","state_bytes":50331648,*"convolution_bytes":1179648,*
# stdout: *"state":"int8","policy":"window","state_bytes":14942208,*"more_requests":*
"$tool" plan --shape qwen3.5-9b --memory 80GB --context 8192 --json --state fp32,int8
