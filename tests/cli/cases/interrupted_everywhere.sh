# SPDX-License-Identifier: Apache-2.0
#
# Ctrl-C and SIGTERM end every long verb soon, with the exit code of a failure and a sentence, and
# leave no file behind. What is allowed here is several times what is needed: tests run in parallel.
set -m # jobs of a script ignore Ctrl-C without
check() { # <signal> <verb>...: exits 99 when the tool does not end as it should
  local signal="$1" begin code
  shift
  "$tool" "$@" >out 2>err &
  sleep 1.5
  kill "-$signal" $! || { echo "$*: ended too soon: $(cat err)" >&2; exit 99; }
  begin=$SECONDS
  wait $!
  code=$?
  ((SECONDS - begin <= 6)) || { echo "$*: took $((SECONDS - begin)) s to end" >&2; exit 99; }
  [[ $code == 1 ]] || { echo "$*: the exit code is $code" >&2; exit 99; }
  [[ "$(cat err)" == *"leapquant: Interrupted"* ]] || { echo "$*: $(cat err)" >&2; exit 99; }
  must_be_equal "what is left by $*" "$(ls)" $'err\nout'
}
text="$source/lab/texts/us_constitution.txt"
long="$model/tasks/long"
# One round of this pool alone would take far longer than is allowed.
check INT bench --pool 2GiB --rounds 1000 --threads 1 --state fp32:step --quiet
check INT bench generate --model "$model" --tokens 30000 --state int8
check INT drift --model "$model" --text "$text" --tokens 0 --state int8,int4+ --quiet --csv d.csv
check TERM drift --model "$model" --text "$text" --tokens 0 --every 1000000 --state int4+ --quiet
check INT eval --model "$model" --tasks "$long/recall.jsonl" --state int8 --quiet
check INT eval --model "$model" --tasks "$long/recall.jsonl" --state int8 --no-kl --quiet
check TERM generate --model "$model" --prompt a --max-tokens 30000 --quiet
# A prompt whose prefill takes a minute; of a context that was read in part no session is left.
head -c 30000 "$text" >../long.txt
check INT generate --model "$model" --prompt "$(cat ../long.txt)" --max-tokens 5 --quiet \
  --save-session long.session
check INT record --model "$model" --text "$text" --tokens 32000 --out r.safetensors --quiet
check INT run --model "$model" --tier long --quiet
# A session that was asked for is whole: it goes on where the text ended.
"$tool" generate --model "$model" --prompt a --max-tokens 30000 --save-session s \
  --quiet >out 2>err &
sleep 1.5
kill -INT $!
wait $!
[[ $? == 1 && "$(cat err)" == *Interrupted* ]] || exit 98
"$tool" state verify s >out || exit 97
