# SPDX-License-Identifier: Apache-2.0
#
# An architecture that the tool does not run names those that it does.
# exit: 1
# stderr: leapquant: *llama*
# stderr: *[qQ]wen3_5*
model_copy m
replace_file m/config.json sed 's/Qwen3_5ForCausalLM/LlamaForCausalLM/; s/qwen3_5_text/llama/'
"$tool" generate --model m --prompt x
