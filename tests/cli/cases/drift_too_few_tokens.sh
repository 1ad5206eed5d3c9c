# SPDX-License-Identifier: Apache-2.0
#
# Fewer tokens than the first one that counts: a sentence before the work, not an empty table.
# exit: 1
# stdout:
# stderr: leapquant: *"r"*300 tokens*--from*
text="$source/lab/texts/jargon_file.txt"
"$tool" drift --model "$model" --text "$text" --tokens 1024 2>err >out
[[ $? == 2 && "$(cat err)" == *"--from 1024"*"--tokens 1024"* && ! -s out ]] || exit 99
head -c 200 "$text" >short.txt
"$tool" drift --model "$model" --text "$text" --text short.txt 2>err >out
[[ $? == 1 && "$(cat err)" == *'"short" has '*"--from"* && ! -s out ]] || exit 98
"$tool" record --model "$model" --text "$text" --tokens 300 --out r.safetensors \
  --quiet >out || exit 97
"$tool" drift --inputs r.safetensors --csv d.csv
code=$?
must_not_exist d.csv
exit $code
