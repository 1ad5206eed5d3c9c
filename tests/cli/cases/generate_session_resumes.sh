# SPDX-License-Identifier: Apache-2.0
#
# A resumed session gives what the uninterrupted run gives.
run() { "$tool" generate --model "$model" --quiet "$@"; }
whole="$(run --prompt $'L 2 57 50 9\n' --max-tokens 80)"
first="$(run --prompt $'L 2 57 50 9\n' --max-tokens 37 --save-session s)"
second="$(run --prompt '' --resume s --max-tokens 43)"
[[ -n "$first" ]] || exit 91
must_be_equal completion "$whole" "$first$second"
