# SPDX-License-Identifier: Apache-2.0
#
# A reader that has gone is noticed, without a signal.
# exit: 1
# stderr: leapquant: *standard output*
mkfifo pipe
(exec 3<pipe; exec 3<&-) &
exec 4>pipe
wait
"$tool" inspect "$model" --json --tensors >&4
