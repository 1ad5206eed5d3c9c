# SPDX-License-Identifier: Apache-2.0
#
# Files are written under another name and renamed; that must not replace a device, pipe or link.
# exit: 1
# stderr: *leapquant: Cannot*pipe*device, pipe or socket*
mkfifo pipe
"$tool" generate --model "$model" --prompt 'C abc' --max-tokens 1 --quiet --save-session pipe
code=$?
[[ -p pipe ]] || must_not_exist pipe
exit $code
