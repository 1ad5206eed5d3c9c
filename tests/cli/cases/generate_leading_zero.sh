# SPDX-License-Identifier: Apache-2.0
#
# A leading zero is refused: it would be read as octal.
# exit: 2
# stderr: *leapquant: *--max-tokens*must be a whole number*found \'010\'*
"$tool" generate --model "$model" --prompt 'The ' --max-tokens 010 --json --quiet
