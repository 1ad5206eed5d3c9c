# SPDX-License-Identifier: Apache-2.0
#
# What is in the results file is not computed again, and a cut line is repaired.
# stdout: *"total":3*
run() {
  "$tool" eval --model "$model" --tasks "$model/tasks/short/sort.jsonl" --state int8 \
    --limit "$1" --csv r.csv --json --quiet
}
first="$(run 2)"
lines="$(wc -l <r.csv)"
must_be_equal lines "$lines" 3
must_be_equal "the second run" "$(run 2)" "$first"
must_be_equal "lines after it" "$(wc -l <r.csv)" 3
printf 'abcdef,short,so' >>r.csv
run 3
must_be_equal "lines of three prompts" "$(wc -l <r.csv)" 4
