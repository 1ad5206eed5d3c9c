# SPDX-License-Identifier: Apache-2.0
#
# A tokenizer whose merges name pieces that do not exist.
# exit: 1
# stderr: leapquant: *tokenizer.json*merge*
model_copy m
replace_file m/tokenizer.json sed 's/"merges": *\[\]/"merges": ["qq zz"]/'
"$tool" generate --model m --prompt x
