# SPDX-License-Identifier: Apache-2.0
"""Reads every golden blob with the second reader and compares it with the values kept beside it.

By hand: python3 second_reader_test.py [--update]   (--update writes values that are missing)
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from saved_state import SavedState

BLOBS = Path(__file__).parent / "blobs"
DOCUMENT = Path(__file__).parents[2] / "docs" / "FORMAT.md"


def values_of(blob: bytes) -> list[float]:
    return [x for matrix in SavedState(blob).states() for row in matrix for x in row]


def documented_example() -> bytes:
    """The hex dump of the worked example: lines of an offset and up to sixteen bytes."""
    text = DOCUMENT.read_text(encoding="utf-8")
    dump = text.split("```hex\n")[1].split("```")[0]
    return bytes.fromhex("".join(line[4:] for line in dump.splitlines()))


def main(arguments: list[str]) -> int:
    failures = 0
    paths = sorted(BLOBS.glob("*.blob"))
    if len(paths) < 9:
        print(f"there are only {len(paths)} golden blobs in {BLOBS}")
        failures += 1
    for path in paths:
        values = values_of(path.read_bytes())
        kept_path = path.with_suffix(".values")
        if "--update" in arguments and not kept_path.exists():
            kept_path.write_bytes(struct.pack(f"<{len(values)}f", *values))
        kept = struct.unpack(f"<{len(values)}f", kept_path.read_bytes())
        # The file holds the FP64 values rounded to FP32 once: half a unit in the last place.
        worst = max(abs(x - y) - 2.0**-24 * abs(x) for x, y in zip(values, kept, strict=True))
        if worst > 0:
            print(f"{path.name}: a value differs by {worst} from the kept one")
            failures += 1
    if documented_example() != (BLOBS / "worked_example.blob").read_bytes():
        print(f"the dump in {DOCUMENT} is not worked_example.blob")
        failures += 1
    print(f"{len(paths)} blobs read, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
