# SPDX-License-Identifier: Apache-2.0
#
# One row per tier, task and format with all keys.
# stdout: *"tier":"short","task":"copy","state":"fp32","policy":"step",*
# stdout: *"correct":2,"total":2,"mean_kl":*"tokens_per_second":*"state_bytes":1573344*
# stdout: *"state":"int8","policy":"window","correct":2,*
# stdout: *"state":"int8","policy":"step",*
"$tool" eval --model "$model" --tasks "$model/tasks/short/copy.jsonl" \
  --state fp32,int8,int8:step --limit 2 --json --quiet
