# SPDX-License-Identifier: Apache-2.0
#
# The folder of a model that is not there.
# exit: 1
# stderr: leapquant: There is no model folder "nowhere".
"$tool" run --model nowhere
