# SPDX-License-Identifier: Apache-2.0
"""The files that the house rules look at: a checkout, or any folder. No rule stands here."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from functools import cached_property
from pathlib import Path

CPP_SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".cu", ".cuh"}
SCRIPT_SUFFIXES = {".py", ".sh", ".cmake"}


@dataclasses.dataclass(frozen=True)
class Violation:
    path: str
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.sentence}"


class Tree:
    """Paths are relative to the root, with forward slashes, sorted."""

    def __init__(self, root: Path):
        self.root = root
        self._texts: dict[str, str] = {}

    @cached_property
    def paths(self) -> list[str]:
        """Tracked files and new ones that git does not ignore; without git, every file."""
        command = ["git", "-C", str(self.root), "ls-files", "-z"]
        command += ["--cached", "--others", "--exclude-standard"]
        if (self.root / ".git").exists():
            listed = subprocess.run(command, capture_output=True, check=True).stdout
            paths = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        else:
            paths = [p.relative_to(self.root).as_posix() for p in self.root.rglob("*")]
        return sorted({path for path in paths if (self.root / path).is_file()})

    @cached_property
    def cpp(self) -> list[str]:
        return [path for path in self.paths if Path(path).suffix in CPP_SUFFIXES]

    @cached_property
    def code(self) -> list[str]:
        """C++, C, Python, shell and CMake, also where a script has no suffix."""
        return [path for path in self.paths if path in self.cpp or self._is_script(path)]

    @cached_property
    def documents(self) -> list[str]:
        return [path for path in self.paths if path.endswith(".md")]

    def _is_script(self, path: str) -> bool:
        name = Path(path)
        if name.suffix in SCRIPT_SUFFIXES or name.name == "CMakeLists.txt":
            return True
        if name.suffix:
            return False
        with (self.root / path).open("rb") as file:
            return file.read(2) == b"#!"

    def text(self, path: str) -> str:
        if path not in self._texts:
            # newline="": a carriage return must stay to be seen.
            with (self.root / path).open(encoding="utf-8", newline="") as file:
                self._texts[path] = file.read()
        return self._texts[path]

    def lines(self, path: str) -> list[str]:
        return self.text(path).split("\n")

    def size(self, path: str) -> int:
        return (self.root / path).stat().st_size
