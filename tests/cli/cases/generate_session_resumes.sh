# SPDX-License-Identifier: Apache-2.0
#
# A resumed session gives what the uninterrupted run gives.
whole="$("$tool" generate --model "$model" --prompt $'L 2 57 50 9\n' --max-tokens 80 --quiet)"
first="$("$tool" generate --model "$model" --prompt $'L 2 57 50 9\n' --max-tokens 37 --save-session s --quiet)"
second="$("$tool" generate --model "$model" --prompt '' --resume s --max-tokens 43 --quiet)"
must_be_equal completion "$whole" "$first$second"
