# SPDX-License-Identifier: Apache-2.0
#
# A folder without weights.
# exit: 1
# stderr: leapquant: *safetensors*
mkdir m
cp "$model"/*.json m/
rm m/model.safetensors.index.json
"$tool" inspect m
