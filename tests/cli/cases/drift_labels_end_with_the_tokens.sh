# SPDX-License-Identifier: Apache-2.0
#
# Labels of ranges and steps end where the longest sequence ends.
# stdout: *output error 16-300 *to token*256*300*
# stdout: *"from":16,"to":300,*
# stdout: *output error 16-200 *to token*100*200*300*
# not-stdout: *4096*
# not-stdout: *512*
text="$source/lab/texts/jargon_file.txt"
head -c 300 "$text" >short.txt
"$tool" record --model "$model" --text "$text" --tokens 300 --out r --quiet >out || exit 91
"$tool" drift --inputs r --from 16 --every 256 --quiet || exit 92
"$tool" drift --inputs r --from 16 --every 256 --json --quiet | head -c 200 || exit 93
"$tool" drift --model "$model" --tokens 300 --text short.txt --text "$text" --from 16 --to 200 \
  --every 100 --quiet
