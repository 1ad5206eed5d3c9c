# SPDX-License-Identifier: Apache-2.0
#
# A file may have a name that is not UTF-8; JSON about it is UTF-8 all the same.
bad=$'bad\xff'
good=$'bad\xef\xbf\xbd'
check() { # <verb>...
  "$tool" "$@" --json >out 2>err || { echo "$*: $(cat err)" >&2; exit 99; }
  [[ "$(cat out)" == *"$good"* ]] || { cat out >&2; exit 98; }
  iconv -f UTF-8 -t UTF-8 out >same || exit 97
}
model_copy "$bad"
printf 'some text of a few tokens' >"$bad.txt"
check inspect "$bad"
check plan --model "$bad" --memory 1GiB
check record --model "$bad" --text "$bad.txt" --out "$bad.st" --quiet
check drift --inputs "$bad.st" --from 0 --quiet
check drift --model "$bad" --text "$bad.txt" --from 0 --quiet
check state save --model "$bad" --text "$bad.txt" --out "$bad.session"
check state verify "$bad.session"
check state inspect "$bad.session"
check state convert "$bad.session" "$bad.converted" --to int4+
mkdir tasks
head -n 1 "$model/tasks/short/copy.jsonl" >"tasks/$bad.jsonl"
check eval --model "$bad" --tasks tasks --state int8 --no-kl --quiet
