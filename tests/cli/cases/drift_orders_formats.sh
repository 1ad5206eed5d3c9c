# SPDX-License-Identifier: Apache-2.0
#
# Better formats drift less; FP32 hardly at all.
"$tool" drift --model "$model" --text "$source/lab/texts/us_constitution.txt" \
  --tokens 512 --from 128 --to 512 \
  --every 128 --state fp32,int8,int4,int8:step --json --quiet --csv d.csv >d.json || exit 91
errors=($(grep -o '"every":128,"output_error":[^,]*' d.json | grep -o '[^:]*$'))
awk -v a="${errors[0]}" -v b="${errors[1]}" -v c="${errors[2]}" -v d="${errors[3]}" \
  'BEGIN { exit !(a < 1e-9 && a < b && b < c && b < d) }' || { echo "${errors[@]}" >&2; exit 92; }
# 4 formats, 24 heads, 4 buckets and the heading
must_be_equal "lines of the table" "$(wc -l <d.csv)" 385
