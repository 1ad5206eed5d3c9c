#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures on a CUDA device the decode steps of a real configuration, and the task counts of the
# reference model with its activations in FP32 and BF16.
#   usage: bench/cuda/measure_model.sh [FOLDER] [steps | tasks]
# Writes h200_model.jsonl (steps) and h200_tasks_medium.jsonl (tasks) there, or one of them;
# default: both, to bench/results.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cd "$root"
tool="${LEAPQUANT_TOOL:-build/leapquant}"
results="${1:-bench/results}"
part="${2:-all}"
mkdir -p "$results"

if [[ "$part" != tasks ]]; then
  bench=("$tool" bench model --shape qwen3.5-9b --random-weights --device cuda --json)
  {
    "${bench[@]}" --batch 1,8,64,256 --steps 32 \
      --state fp32,bf16,bf16:window=16:stagger=1,int8,int8:stagger=1,int4+:stagger=1
    "${bench[@]}" --batch 512 --context 2048 --steps 16 --state fp32,bf16,int8:stagger=1
  } >"$results/h200_model.jsonl"
fi
if [[ "$part" == steps ]]; then exit 0; fi

device="$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)"
for activations in fp32 bf16; do
  "$tool" eval --model models/gdn-16m --tasks models/gdn-16m/tasks/medium --no-kl \
    --device cuda --activations "$activations" --state fp32,bf16,int8 --json --quiet |
    sed "s/^{/{\"device\":\"$device\",\"activations\":\"$activations\",/"
done >"$results/h200_tasks_medium.jsonl"
