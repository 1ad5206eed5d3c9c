# SPDX-License-Identifier: Apache-2.0
#
# A stop text ends the completion before it.
# stdout: *"completion":"abcd"*"finish_reason":"stop"*
"$tool" generate --model "$model" --prompt $'C abcdefgh\n' --stop ef --json --quiet
