# SPDX-License-Identifier: Apache-2.0
#
# Time per token against reading the same bytes.
# stdout: *"state":"int8","policy":"window","threads":1,"bytes":*"ratio":*
"$tool" bench generate --model "$model" --state int8 --tokens 32 --json
