# SPDX-License-Identifier: Apache-2.0
#
# A session for a folder that does not exist is refused before the work.
# exit: 1
# stderr: leapquant: *no/such/folder*
# not-stdout: *abc*
"$tool" generate --model "$model" --prompt 'C abc' --save-session no/such/folder
code=$?
must_not_exist no
exit $code
