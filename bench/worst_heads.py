# SPDX-License-Identifier: Apache-2.0
"""Error per head late in a long run against early in it, from `leapquant drift --heads --json`.

usage: worst_heads.py RUN.jsonl ROWS.jsonl

RUN has buckets of 16,384 tokens and a span from token 65,536 on (bench/measure_drift.sh heads).
ROWS receives one line per format and head; the worst head of every format is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

EARLY_BUCKET = 1  # tokens 16,384 to 32,768


def rows_of(line: dict) -> list[dict]:
    if line["every"] != 16384 or line["from"] != 65536:
        raise SystemExit("worst_heads.py: the run needs --every 16384 --from 65536")
    (sequence,) = line["sequences"]
    rows = []
    for head in sequence["heads"]:
        early = head["output_errors"][EARLY_BUCKET]
        late = head["output_error"]
        rows.append(
            {
                "state": line["state"],
                "policy": line["policy"],
                "layer": head["layer"],
                "head": head["head"],
                "mean_log_decay": head["mean_log_decay"],
                "error_16k_32k": early,
                "error_from_65k": late,
                "ratio": late / early if early > 0 else None,
                "finite": head["finite"],
            }
        )
    return rows


def main(run: str, target: str) -> None:
    with Path(run).open(encoding="utf-8") as file:
        formats = [rows_of(json.loads(line)) for line in file]
    with Path(target).open("w", encoding="utf-8") as file:
        for rows in formats:
            for row in rows:
                file.write(json.dumps(row) + "\n")
    for rows in formats:
        worst = max(rows, key=lambda row: row["ratio"] or 0)
        early = sum(row["error_16k_32k"] for row in rows)
        late = sum(row["error_from_65k"] for row in rows)
        print(
            f"{worst['state']}: worst head {worst['ratio']:.2f} (layer {worst['layer']}, head "
            f"{worst['head']}), mean over {len(rows)} heads {late / early:.2f}, "
            f"{'all finite' if all(row['finite'] for row in rows) else 'NOT ALL FINITE'}"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2])
