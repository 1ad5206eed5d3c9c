# SPDX-License-Identifier: Apache-2.0
"""The rules of the house, but for the include directions: each tells the violations of a tree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from include_laws import include_directions
from tree import Tree, Violation

SPDX = "SPDX-License-Identifier: Apache-2.0"
MAX_FILE_LINES = 600
# The one stable surface is one file that reads like a manual.
MAX_PUBLIC_HEADER_LINES = 900
PUBLIC_HEADER = "include/leapquant/leapquant.h"
MAX_COLUMNS = 100
MAX_TRACKED_BYTES = 55_000_000
MAX_README_LINES = 200
FIRST_COMMAND_BY_LINE = 30
BANNED_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "manager", "managers"}
WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".npz", ".npy", ".h5"}
WEIGHTS_FOLDER = "models/gdn-16m/"
SMALL_FIXTURE_BYTES = 262_144
BUILT_ROOMS = (
    "src/",
    "runtime/",
    "runtime/cuda/",
    "lab/",
    "tool/",
    "tests/",
    "tests/cuda/",
    "tests/cuda_runtime/",
    "tests/emulator/",
    "bench/cpu/",
    "examples/",
)


def licence_line(tree: Tree) -> list[Violation]:
    """The licence stands in the first line, or in the second after a #!."""
    violations = []
    for path in tree.code:
        lines = tree.lines(path)
        first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
        if SPDX not in first:
            violations.append(Violation(path, 1, f"the first line must say {SPDX}"))
    return violations


def file_length(tree: Tree) -> list[Violation]:
    violations = []
    for path in tree.code:
        count = len(tree.text(path).splitlines())
        most = MAX_PUBLIC_HEADER_LINES if path == PUBLIC_HEADER else MAX_FILE_LINES
        if count > most:
            sentence = f"{count} lines; {most} is the most, so split it by idea"
            violations.append(Violation(path, count, sentence))
    return violations


def line_shape(tree: Tree) -> list[Violation]:
    """Width, tabs, trailing space, carriage returns, and the newline at the end."""
    violations = []
    for path in sorted({*tree.code, *tree.documents}):
        text = tree.text(path)
        if text and not text.endswith("\n"):
            violations.append(Violation(path, text.count("\n") + 1, "no newline at the end"))
        for number, line in enumerate(tree.lines(path), 1):
            if "\t" in line:
                violations.append(Violation(path, number, "a tab; use spaces"))
            if line.rstrip() != line:
                violations.append(Violation(path, number, "white space at the end of the line"))
            # A document's tables and an address cannot be broken.
            too_wide = len(line) > MAX_COLUMNS and path in tree.code and "://" not in line
            if too_wide:
                sentence = f"{len(line)} columns; {MAX_COLUMNS} is the most"
                violations.append(Violation(path, number, sentence))
    return violations


def names_say_something(tree: Tree) -> list[Violation]:
    violations = []
    for path in tree.paths:
        words = re.split(r"[/_.\-]", path.lower())
        for word in sorted(BANNED_NAMES.intersection(words)):
            violations.append(
                Violation(path, 1, f"'{word}' in a name says nothing; say what it is")
            )
    for path in tree.cpp:
        for number, line in enumerate(tree.lines(path), 1):
            for name in re.findall(r"\bnamespace\s+(\w+)", line):
                if name.lower() in BANNED_NAMES:
                    sentence = f"namespace '{name}' says nothing; say what it holds"
                    violations.append(Violation(path, number, sentence))
    return violations


def no_leftovers(tree: Tree) -> list[Violation]:
    """No open ends in the code, and no path of one machine anywhere."""
    open_end = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    machine_path = re.compile(r"(?<![\w.\-/}])/(work|home|root|Users)/\w")
    violations = []
    for path in sorted({*tree.code, *tree.documents}):
        for number, line in enumerate(tree.lines(path), 1):
            if path in tree.code and open_end.search(line):
                violations.append(Violation(path, number, "an open end; finish it"))
            if machine_path.search(line):
                violations.append(Violation(path, number, "a path that only one machine has"))
    return violations


def library_is_silent(tree: Tree) -> list[Violation]:
    """Nothing in src prints, logs, ends the program or throws."""
    loud = re.compile(
        r"\b(printf|fprintf|puts|fputs|perror|abort|exit|_Exit|terminate|assert)\s*\("
        r"|\bstd::(cout|cerr|clog)\b|\bthrow\b|\btry\s*\{"
    )
    violations = []
    for path in tree.cpp:
        if not path.startswith("src/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            match = loud.search(line.split("//")[0])
            if match:
                sentence = f"'{match.group().strip()}': the library answers with a status only"
                violations.append(Violation(path, number, sentence))
    return violations


def library_allocates_without_throwing(tree: Tree) -> list[Violation]:
    """What src allocates may be refused without an exception: nothing in it could catch one.

    The reference, which no user is served by, is plain loops over vectors.
    """
    throwing = re.compile(
        r"\bstd::(vector|string|deque|list|map|set|unordered_map|function)\b"
        r"|\bstd::make_(unique|shared)\b"
        r"|\bnew\s+(?!\(std::nothrow\))[A-Za-z_:]"
    )
    violations = []
    for path in tree.cpp:
        if not path.startswith("src/") or path.startswith("src/reference/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            match = throwing.search(line.split("//")[0])
            if match:
                sentence = f"'{match.group().strip()}' throws where memory is short: core/array.h"
                violations.append(Violation(path, number, sentence))
    return violations


def anchors_of(document: Path) -> set[str]:
    """The anchors that a Markdown page offers, as the usual viewers form them."""
    anchors: set[str] = set()
    seen: dict[str, int] = {}
    fenced = False
    for line in document.read_text(encoding="utf-8").split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        match = None if fenced else re.match(r"#{1,6}\s+(.*)", line)
        if match:
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            anchors.add(f"{slug}-{count}" if count else slug)
    return anchors


def links_resolve(tree: Tree) -> list[Violation]:
    """Relative links of the documents lead to a file, and to a heading that it has."""
    link = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\"")
    violations = []
    for path in tree.documents:
        fenced = False
        for number, line in enumerate(tree.lines(path), 1):
            if line.startswith("```"):
                fenced = not fenced
            if fenced:
                continue
            for found in link.findall(re.sub(r"`[^`]*`", "", line)):
                target = found[0] or found[1]
                if re.match(r"[a-z]+:", target):
                    continue
                file_part, _, anchor = target.partition("#")
                goal = tree.root / path
                if file_part:
                    goal = (tree.root / PurePosixPath(path).parent / file_part).resolve()
                if not goal.exists():
                    violations.append(Violation(path, number, f"the link {target} leads nowhere"))
                elif anchor and goal.suffix == ".md" and anchor not in anchors_of(goal):
                    sentence = f"{goal.name} has no heading for #{anchor}"
                    violations.append(Violation(path, number, sentence))
    return violations


def readme_starts_fast(tree: Tree) -> list[Violation]:
    if "README.md" not in tree.paths:
        return [Violation("README.md", 1, "there is no README.md")]
    lines = tree.text("README.md").splitlines()
    violations = []
    if len(lines) >= MAX_README_LINES:
        sentence = f"{len(lines)} lines; it must stay under {MAX_README_LINES}"
        violations.append(Violation("README.md", len(lines), sentence))
    if not any(line.startswith("./run") for line in lines[:FIRST_COMMAND_BY_LINE]):
        sentence = (
            f"./run must stand at the start of one of the first {FIRST_COMMAND_BY_LINE} lines"
        )
        violations.append(Violation("README.md", 1, sentence))
    return violations


def tree_is_small(tree: Tree) -> list[Violation]:
    """No weights but the reference model's, and a checkout that is quick to fetch."""
    violations = []
    total = sum(tree.size(path) for path in tree.paths)
    if total > MAX_TRACKED_BYTES:
        sentence = f"the tree holds {total} bytes; {MAX_TRACKED_BYTES} is the most"
        violations.append(Violation(".", 1, sentence))
    for path in tree.paths:
        is_weights = Path(path).suffix in WEIGHT_SUFFIXES and tree.size(path) > SMALL_FIXTURE_BYTES
        if is_weights and not path.startswith(WEIGHTS_FOLDER):
            violations.append(Violation(path, 1, f"weights belong into {WEIGHTS_FOLDER} only"))
    return violations


def sources_are_built(tree: Tree, compile_commands: Path) -> list[Violation]:
    """The build that wrote compile_commands.json compiles all files of a room, or (an option that
    is off) none of them."""
    entries = json.loads(compile_commands.read_text(encoding="utf-8"))
    built = {Path(entry["directory"], entry["file"]).resolve() for entry in entries}
    violations = []
    for room in BUILT_ROOMS:
        inner = tuple(r for r in BUILT_ROOMS if r != room and r.startswith(room))
        sources = [
            p
            for p in tree.cpp
            if p.startswith(room) and not p.startswith(inner) and p.endswith((".c", ".cpp"))
        ]
        left_out = [p for p in sources if (tree.root / p).resolve() not in built]
        if len(left_out) < len(sources) or room == "src/":
            sentence = "no target of the build compiles this file"
            violations += [Violation(path, 1, sentence) for path in left_out]
    return violations


LAWS: dict[str, Callable[[Tree], list[Violation]]] = {
    law.__name__: law
    for law in (
        include_directions,
        licence_line,
        file_length,
        line_shape,
        names_say_something,
        no_leftovers,
        library_is_silent,
        library_allocates_without_throwing,
        links_resolve,
        readme_starts_fast,
        tree_is_small,
    )
}
