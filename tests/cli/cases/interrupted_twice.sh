# SPDX-License-Identifier: Apache-2.0
#
# The second signal ends the program at once, whatever the kinds of the two. The first alone ends it
# after the pass that is under way, which may by chance come before the second: then once more.
# exit: 143
set -m # jobs of a script ignore Ctrl-C without
head -c 30000 "$source/lab/texts/us_constitution.txt" >long.txt
for ((i = 0; i < 5; ++i)); do
  "$tool" generate --model "$model" --max-tokens 5 --quiet <long.txt >out 2>err &
  sleep 1
  kill -INT $!
  sleep 0.1
  kill -TERM $!
  wait $! && exit 99
  code=$?
  [[ $code == 1 ]] || break
done
exit $code
