# SPDX-License-Identifier: Apache-2.0
"""Every object file of kernels holds machine code for each architecture that the build was
told, and PTX for devices to come: read from the files themselves, as cuobjdump would. Kernels for
heads of 128 x 128 are for 90 (90a) alone.

Usage: architectures_test.py ARCHITECTURE..."""

from __future__ import annotations

import json
import os
import shlex
import struct
import sys
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, MACHINE_CODE = 1, 2


def contents(data: bytes) -> set[tuple[int, int]]:
    """Kind and architecture of all that the device code of an object file holds."""
    found = set()
    start = data.find(MAGIC)
    while start >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, start)
        at = start + header
        end = at + size
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            found.add((kind, struct.unpack_from("<I", data, at + 28)[0]))
            at += header + size
        start = data.find(MAGIC, end)
    return found


def main() -> int:
    told = {int(name.split("-")[0].rstrip("a")) for name in sys.argv[1:]}
    commands = Path(os.environ["LEAPQUANT_BINARY_DIR"], "compile_commands.json")
    checked = broken = 0
    for entry in json.loads(commands.read_text(encoding="utf-8")):
        source = Path(entry["file"])
        if source.suffix != ".cu" or source.parent.name != "cuda":
            continue
        words = shlex.split(entry["command"])
        output = words[words.index("-o") + 1]
        if output.startswith("bench/"):  # not built by default
            continue
        special = source.stem.endswith(("_128", "_90a"))
        expected = {90} if special else told
        found = contents(Path(entry["directory"], output).read_bytes())
        machine = {architecture for kind, architecture in found if kind == MACHINE_CODE}
        ptx = {architecture for kind, architecture in found if kind == PTX}
        right = machine == expected and max(ptx, default=0) == max(expected)
        checked += 1
        broken += not right
        print(f"{source.name}: {sorted(machine)}, PTX {sorted(ptx)}{'' if right else ': WRONG'}")
    if checked == 0:
        print("this build compiles no file of src/cuda")
    return 1 if broken or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
