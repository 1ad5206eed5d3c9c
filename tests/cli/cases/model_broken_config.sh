# SPDX-License-Identifier: Apache-2.0
#
# A configuration that is not JSON.
# exit: 1
# stderr: leapquant: *config.json*
model_copy m
replace_file m/config.json head -c 200
"$tool" generate --model m --prompt x
