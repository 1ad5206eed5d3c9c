# SPDX-License-Identifier: Apache-2.0
#
# A text that is not UTF-8 is named; of several it would not be known which.
# exit: 1
# stderr: leapquant: The text "b.txt" is not valid UTF-8 at byte 1; convert it to UTF-8 first.
# not-stdout: *?*
echo abc >a.txt
printf 'a\xffb' >b.txt
refuse() { # <pattern> <words of the call>...
  local pattern="$1"
  shift
  "$tool" "$@" --model "$model" >out 2>err
  [[ $? == 1 && ! -s out && "$(cat err)" == *"$pattern is not valid UTF-8 at byte "* ]] || {
    echo "$*: $(cat err)" >&2
    exit 99
  }
}
refuse 'The text "b.txt"' record --text b.txt --out r --quiet
refuse 'The text "b.txt"' state save --text b.txt --out r
refuse 'The prompt' state save --prompt $'\xff' --out r
must_not_exist r
"$tool" drift --model "$model" --text a.txt --text b.txt --from 0 --to 2 --quiet
