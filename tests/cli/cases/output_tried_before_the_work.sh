# SPDX-License-Identifier: Apache-2.0
#
# Every verb with an output tries it before anything else is read: here nothing else exists. A name
# of 255 bytes leaves no room for the temporary neighbour, which no permission can help.
long="$(printf 'x%.0s' {1..255})"
check() { # <output> <verb>...
  local output="$1"
  shift
  "$tool" "$@" "$output" >out 2>err
  [[ $? == 1 ]] || { echo "$*: $(cat err)" >&2; exit 99; }
  [[ "$(cat err)" == *leapquant:*"\"$output\""* && ! -s out ]] || { cat err >&2; exit 98; }
  must_be_equal "what is left by $*" "$(ls)" $'err\nout'
}
for output in no/such/file "$long" .; do
  check "$output" drift --inputs none --csv
  check "$output" drift --model none --text none --csv
  check "$output" drift --model none --tasks none --csv
  check "$output" generate --model none --prompt a --save-session
  check "$output" record --model none --text none --out
  check "$output" record --model none --tasks none --out
  check "$output" state save --model none --prompt a --out
  check "$output" state save --model none --text none --out
  check "$output" state save --session none --out
  check "$output" state convert --to int8 none
done
