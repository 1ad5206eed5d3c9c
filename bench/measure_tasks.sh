#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures the task table of README.md: exact-match accuracy and mean KL of every preset and of the
# per-step baselines, one process per (task, format) with one thread each, so that a machine with
# many cores is full. Resumable: prompt-by-prompt results stay in the working folder.
#   usage: bench/measure_tasks.sh [TIER [PROCESSES [WORKING_FOLDER]]]
# TIER: short, medium, long, or text: loss and KL on two held-out texts.
# Writes bench/results/tasks_TIER.jsonl and the machine's name beside it.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
tool="${LEAPQUANT_TOOL:-build/leapquant}"
tier="${1:-medium}"
processes="${2:-$(nproc)}"
work="${3:-$root/build/tasks_$tier}"
results="${LEAPQUANT_RESULTS:-bench/results}"
states="${LEAPQUANT_STATES:-fp32 bf16 int8 int6 int4 int8+ int6+ int4+ int4-compact \
bf16:window=16 int8:step int6:step int4:step int8:fit=fixed:rounds=1 \
int4+:fit=fixed:rounds=1}"
tasks="${LEAPQUANT_TASKS:-lcg swap copy recall add sort}" # longest first: the last jobs are short
limit="${LEAPQUANT_LIMIT:-0}"
mkdir -p "$work" "$results"

if [[ "$tier" == text ]]; then # two held-out texts: 64 bytes of prompt, 4,032 to predict
  tasks=texts
  mkdir -p "$work/text"
  python3 - "$work" <<'PYTHON'
import json, pathlib, sys
with open(pathlib.Path(sys.argv[1]) / "text" / "texts.jsonl", "w") as out:
    for path in sorted(pathlib.Path("lab/texts").glob("*.txt")):
        text = path.read_text(encoding="utf-8")[:4096]
        line = {"id": path.stem, "task": "texts", "prompt": text[:64], "answer": text[64:]}
        out.write(json.dumps({**line, "check": "exact"}) + "\n")
PYTHON
fi

evaluate() {
  local name
  name="$(echo "$1-$2" | tr -c 'A-Za-z0-9+=\n-' '_')"
  [[ -s "$work/$name.jsonl" ]] && return
  "$tool" eval --model models/gdn-16m --tasks "$folder/$1.jsonl" --state "$2" \
    --limit "$limit" --threads 1 --csv "$work/$name.csv" --json --quiet >"$work/$name.part"
  mv "$work/$name.part" "$work/$name.jsonl"
}
export -f evaluate
folder="models/gdn-16m/tasks/$tier"
[[ "$tier" == text ]] && folder="$work/text"
export tool folder work limit

for task in $tasks; do
  for state in $states; do printf '%s\0%s\0' "$task" "$state"; done
done | xargs -0 -n 2 -P "$processes" bash -c 'evaluate "$0" "$1"'

cat "$work"/*-*.jsonl >"$results/tasks_$tier.jsonl"
{
  echo "command: bench/measure_tasks.sh $tier $processes"
  echo "commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  grep -m 1 'model name' /proc/cpuinfo
  echo "cores: $(nproc)"
} >"$results/tasks_$tier.machine.txt"
