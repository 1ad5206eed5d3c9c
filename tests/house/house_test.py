# SPDX-License-Identifier: Apache-2.0
"""Checks this tree against the rules of the house. LEAPQUANT_BINARY_DIR adds the look at the build.

By hand: python3 tests/house/house_test.py [name of a rule]...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from laws import LAWS, sources_are_built
from tree import Tree


def main(names: list[str]) -> int:
    tree = Tree(Path(__file__).resolve().parents[2])
    laws = dict(LAWS)
    binary_dir = os.environ.get("LEAPQUANT_BINARY_DIR")
    if binary_dir:
        commands = Path(binary_dir, "compile_commands.json")
        laws["sources_are_built"] = lambda tree: sources_are_built(tree, commands)
    unknown = [name for name in names if name not in laws]
    if unknown:
        print(f"no such rule: {', '.join(unknown)}; there are {', '.join(laws)}", file=sys.stderr)
        return 2
    broken = 0
    for name in names or laws:
        violations = laws[name](tree)
        broken += len(violations)
        print(f"{name}: {len(violations) or 'no'} violations")
        for violation in violations:
            print(f"  {violation}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
