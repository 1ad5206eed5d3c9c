# SPDX-License-Identifier: Apache-2.0
#
# A context that the memory limit does not allow is refused with the bytes.
# exit: 1
# stderr: leapquant: *[bB]ytes*
head -c 20000 /dev/zero | tr '\0' a | "$tool" generate --model "$model" --memory 8MiB
