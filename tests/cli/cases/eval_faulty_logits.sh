# SPDX-License-Identifier: Apache-2.0
#
# Logits that are not finite are no prediction, though every layer's state is sound.
# exit: 1
# stdout: *"correct":0,"total":1,"mean_kl":null,"mean_loss":null,*
# stderr: *Prompt copy-short-000 of short/copy, state int8 (window): The logit of token 0 is*
# stderr: *leapquant: Not every prompt was completed.
model_copy m
huge_weights m/model-00003-of-00003.safetensors model.norm.weight
"$tool" eval --model m --tasks "$model/tasks/short/copy.jsonl" --state int8 --limit 1 --json --quiet
