# SPDX-License-Identifier: Apache-2.0
#
# A weight of another shape than the configuration says.
# exit: 1
# stderr: leapquant: *384*512*
model_copy m
replace_file m/config.json sed 's/"hidden_size": 384/"hidden_size": 512/'
"$tool" generate --model m --prompt x
