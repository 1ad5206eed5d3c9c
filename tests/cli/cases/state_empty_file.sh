# SPDX-License-Identifier: Apache-2.0
#
# An empty file is no state.
# exit: 1
# stderr: leapquant: *
touch e; "$tool" state verify e
