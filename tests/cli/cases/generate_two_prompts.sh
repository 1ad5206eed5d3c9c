# SPDX-License-Identifier: Apache-2.0
#
# --prompt and --prompts exclude each other.
# exit: 2
# stderr: leapquant: *--prompt*--prompts*exclude*
"$tool" generate --model "$model" --prompt x --prompts y
