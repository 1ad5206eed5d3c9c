# SPDX-License-Identifier: Apache-2.0
"""Writes a text of 49,152 bytes: two texts and task strings, in pieces of 4,096 in turn.

usage: periodic_text.py MODEL TARGET

Repeated without end in segments of 4,096 bytes, it gives a model of bytes the same layer inputs
from token 65,536 on as from token 16,384 on: what differs then is what the state has kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PIECE = 4096
PIECES = 4
ROOT = Path(__file__).resolve().parent.parent


def task_strings(model: str) -> bytes:
    files = sorted(Path(model, "tasks", "medium").glob("*.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    text = ""
    for row in zip(*lines, strict=False):
        text += "".join(task["prompt"] + task["answer"] + "\n" for task in row)
    return text.encode()


def main(model: str, target: str) -> None:
    texts = [
        (ROOT / "lab" / "texts" / name).read_text(encoding="utf-8").encode("ascii", "ignore")
        for name in ("us_constitution.txt", "jargon_file.txt")
    ]
    texts.append(task_strings(model))
    if any(len(text) < PIECE * PIECES for text in texts):
        raise SystemExit("periodic_text.py: a text is too short")
    pieces = [text[PIECE * i : PIECE * (i + 1)] for i in range(PIECES) for text in texts]
    Path(target).write_bytes(b"".join(pieces))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2])
