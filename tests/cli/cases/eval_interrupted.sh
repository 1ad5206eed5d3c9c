# SPDX-License-Identifier: Apache-2.0
#
# Ctrl-C ends an evaluation before its batch is done and leaves a results file of whole lines, which
# another run takes. The time that it may take is the test's limit.
# exit: 1
# stderr: *leapquant: Interrupted; call the same command again to continue.
set -m # jobs of a script ignore Ctrl-C without
"$tool" eval --model "$model" --tasks "$model/tasks/medium" --state int8 --csv r.csv \
  --no-kl --quiet &
until [[ -s r.csv ]]; do sleep 0.2; done
sleep 2
kill -INT $!
wait $!
code=$?
must_be_equal "the last byte" "$(tail -c 1 r.csv | od -An -c | tr -d ' ')" '\n'
must_be_equal "columns of all lines" "$(awk -F, '{print NF}' r.csv | sort -u)" 12
"$tool" eval --model "$model" --tasks "$model/tasks/short/sort.jsonl" --state int8 --limit 1 \
  --csv r.csv --no-kl --quiet || exit 98
exit $code
