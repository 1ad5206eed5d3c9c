# SPDX-License-Identifier: Apache-2.0
"""Exported symbols of the shared library equal symbols.txt: none missing, none let slip.

By hand: python3 symbols_test.py LIBRARY [--update]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_name("symbols.txt")


def exported(library: str) -> set[str]:
    """Defined dynamic symbols, save weak ones of the C++ library (unoptimised builds)."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", library]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = set()
    for line in lines:
        name, kind = line.split()[:2]
        if kind in "WVu" and "leapquant" not in name:
            continue
        symbols.add(name)
    return symbols


def main(arguments: list[str]) -> int:
    symbols = exported(arguments[0])
    if "--update" in arguments:
        LIST.write_text("".join(f"{name}\n" for name in sorted(symbols)), encoding="utf-8")
        return 0
    listed = set(LIST.read_text(encoding="utf-8").split())
    for name in sorted(listed - symbols):
        print(f"{name} is listed, but the library does not export it")
    for name in sorted(symbols - listed):
        print(f"{name} is exported, but not listed")
    return 0 if symbols == listed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
