# SPDX-License-Identifier: Apache-2.0
#
# Cache memory saved at one checkpoint per 1,024 tokens, as the method claims.
# stdout: *int8*41.6 %*int8*51.8 %*int8*57.1 %*
for shape in qwen3.5-9b qwen3.5-35b-a3b kimi-linear-48b; do
  "$tool" plan --shape "$shape" --memory 192GB --context 32768 --checkpoint-every 1024 --state int8
done
