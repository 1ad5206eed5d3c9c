# SPDX-License-Identifier: Apache-2.0
"""The kernels that decode spill no registers: the build makes ptxas warn of spills in their files
and takes warnings for errors, so it has checked what it built. Here: that it was told to."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FILES = ("decode.cu", "decode_128.cu", "plain_decode_128.cu")


def main() -> int:
    commands = Path(os.environ["LEAPQUANT_BINARY_DIR"], "compile_commands.json")
    entries = json.loads(commands.read_text(encoding="utf-8"))
    found = {}
    for entry in entries:
        path = Path(entry["file"])
        # Benches, which nothing builds by default, compile some of the library's files once more.
        if path.parts[-3:-1] != ("src", "cuda") or " -o bench/" in entry["command"]:
            continue
        if path.name in FILES:
            found[path.name] = entry["command"]
    absent = [name for name in FILES if name not in found]
    for name in absent:
        print(f"{name} is not compiled by this build")
    broken = len(absent)
    for name, command in found.items():
        missing = [flag for flag in ("-warn-spills", "all-warnings") if flag not in command]
        broken += len(missing)
        print(f"{name}: {'lacks ' + ', '.join(missing) if missing else 'spills are errors'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
