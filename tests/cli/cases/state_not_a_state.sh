# SPDX-License-Identifier: Apache-2.0
#
# Other files are not taken for states.
# exit: 1
# stderr: leapquant: *
"$tool" state inspect "$model/config.json"
