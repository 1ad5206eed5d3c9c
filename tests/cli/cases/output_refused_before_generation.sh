# SPDX-License-Identifier: Apache-2.0
#
# A session that cannot be saved is refused before anything is generated.
# exit: 1
# stderr: *pipe*device, pipe or socket*
# not-stdout: *?*
mkfifo pipe
ln -s /dev/null link
for path in /dev/null link pipe; do
  "$tool" generate --model "$model" --prompt 'C abc' --max-tokens 1 --save-session "$path"
  code=$?
  [[ "$code" == 1 ]] || exit 99
done
exit "$code"
