# SPDX-License-Identifier: Apache-2.0
#
# Without --json the completion alone is on standard output.
# stdout: abc123*
# stderr: *tokens per second*
"$tool" generate --model "$model" --prompt $'C abc123\n' --state fp32
