# SPDX-License-Identifier: Apache-2.0
#
# A folder that does not exist.
# exit: 1
# stderr: leapquant: *no-such-folder*
"$tool" inspect no-such-folder
