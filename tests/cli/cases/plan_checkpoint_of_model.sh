# SPDX-License-Identifier: Apache-2.0
#
# A plan for a folder reads its shapes.
# stdout: *gdn-16m*int8*456.0 KiB*
"$tool" plan --model "$model" --memory 1GiB --context 4096 --state fp32,int8
