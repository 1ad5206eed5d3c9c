# SPDX-License-Identifier: Apache-2.0
#
# A session that the disk does not take leaves nothing half-written.
# exit: 1
# stderr: leapquant: *"s"*
printf old >s
(
  ulimit -f 64
  exec "$tool" generate --model "$model" --prompt 'C abc' --save-session s --quiet >out
)
code=$?
must_be_equal "the old file" "$(cat s)" old
must_be_equal files "$(ls)" $'out\ns'
exit $code
