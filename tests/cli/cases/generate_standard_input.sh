# SPDX-License-Identifier: Apache-2.0
#
# The prompt may come from standard input.
# stdout: xyz987*
printf 'C xyz987\n' | "$tool" generate --model "$model" --quiet
