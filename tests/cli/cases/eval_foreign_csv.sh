# SPDX-License-Identifier: Apache-2.0
#
# A file that holds other things is refused and not changed.
# exit: 1
# stderr: leapquant: *r.csv*
printf 'name,value\nx,1\n' >r.csv
"$tool" eval --model "$model" --tasks "$model/tasks/short/copy.jsonl" --limit 1 --csv r.csv
code=$?
must_be_equal "the file" "$(cat r.csv)" $'name,value\nx,1'
exit $code
