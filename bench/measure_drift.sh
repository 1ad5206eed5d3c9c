#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures the drift figures of docs/DESIGN.md into bench/results: all formats on two texts and two
# task sequences, the choices of the fit, the run of 100,000 tokens, and the same run head by head;
# then draws the plots.
#   usage: bench/measure_drift.sh [formats|fit|long|heads]...   (default: all)
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
tool="${LEAPQUANT_TOOL:-build/leapquant}"
python="${LEAPQUANT_PYTHON:-.venv/bin/python}"
model=models/gdn-16m
results=bench/results
mkdir -p "$results"
inputs=(--model "$model" --text lab/texts/us_constitution.txt --text lab/texts/jargon_file.txt
  --tasks "$model/tasks/medium/add.jsonl" --tasks "$model/tasks/medium/sort.jsonl")

# Every choice of the fit for one format: both starts, one and two rounds.
fits() {
  local format choices=()
  for format in "$@"; do
    for start in fixed warm; do
      for rounds in 1 2; do choices+=("$format:fit=$start:rounds=$rounds"); done
    done
  done
  local IFS=,
  echo "${choices[*]}"
}

measure_formats() {
  local states=fp32,bf16,bf16:window=16,int8,int6,int4,int8+,int6+,int4+,int4-compact
  states+=,int8:step,int6:step,int4:step
  "$tool" drift "${inputs[@]}" --state "$states" --json >"$results/drift_formats.jsonl"
  "$tool" inspect "$model" --state "$states" --json >"$results/formats_sizes.json"
  "$python" bench/plot_formats.py "$results/drift_formats.jsonl" "$results/formats_sizes.json" \
    "$results/formats.svg"
}

measure_fit() {
  "$tool" drift "${inputs[@]}" --state "$(fits int8 int6 int4 int8+ int6+ int4+ int4-compact)" \
    --json >"$results/drift_fit.jsonl"
  # Whether a start gets worse with time shows in a longer run only.
  "$tool" drift "${inputs[@]}" --concatenate --tokens 16384 --from 8192 --to 16384 \
    --state "$(fits int8 int4 int4+)" --json >"$results/drift_fit_16k.jsonl"
}

measure_long() {
  "$tool" drift --model "$model" --text lab/texts/us_constitution.txt \
    --text lab/texts/jargon_file.txt --tasks "$model/tasks/medium" --concatenate --tokens 100000 \
    --from 65536 --to 100000 --state fp32,int8,int8+,int4,int4+,int8:step --json \
    >"$results/drift_long.jsonl"
  "$python" bench/plot_drift.py "$results/drift_long.jsonl" "$results/drift_long.svg" \
    --title "100,000 tokens of texts and tasks, gdn-16m"
}

# Late errors against early ones of every head: buckets of 16,384 tokens are enough for that. Once
# for the run above, whose inputs differ from place to place, and once with the same inputs late as
# early.
measure_heads() {
  local folder
  folder="$(mktemp -d)"
  "$tool" drift --model "$model" --text lab/texts/us_constitution.txt \
    --text lab/texts/jargon_file.txt --tasks "$model/tasks/medium" --concatenate --tokens 100000 \
    --from 65536 --to 100000 --every 16384 --state fp32,int8,int8+,int4+ --heads --json \
    >"$folder/run.jsonl"
  "$python" bench/worst_heads.py "$folder/run.jsonl" "$results/drift_heads.jsonl"
  "$python" bench/periodic_text.py "$model" "$folder/periodic.txt"
  "$tool" drift --model "$model" --text "$folder/periodic.txt" --concatenate --tokens 81920 \
    --from 65536 --to 81920 --every 16384 --state int8,int8+,int4+ --heads --json \
    >"$folder/periodic.jsonl"
  "$python" bench/worst_heads.py "$folder/periodic.jsonl" "$results/drift_heads_periodic.jsonl"
  rm -r "$folder"
}

if (($# == 0)); then set -- formats fit long heads; fi
for part in "$@"; do
  case "$part" in
    formats | fit | long | heads) "measure_$part" ;;
    *)
      echo "measure_drift.sh: '$part' is not formats, fit, long or heads" >&2
      exit 2
      ;;
  esac
done
