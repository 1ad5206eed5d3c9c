# SPDX-License-Identifier: Apache-2.0
#
# A tokenizer file that ends early.
# exit: 1
# stderr: leapquant: *tokenizer.json*
model_copy m
replace_file m/tokenizer.json head -c 1000
"$tool" generate --model m --prompt x
