# SPDX-License-Identifier: Apache-2.0
#
# One JSON line per prompt and one for all of them.
# stdout: *"id":"1","completion":"000 50\*2=100+57=57\\n001*"tokens":256,*"finish_reason":"length"*
# stdout: *"tokens_per_second":*"state_bytes":*"boundary_bytes":466944*
"$tool" generate --model "$model" --prompt $'L 2 57 50 4\n' --state int8 --json --quiet
