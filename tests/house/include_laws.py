# SPDX-License-Identifier: Apache-2.0
"""Which room may include which header. This file is the law; docs/DESIGN.md gives the reasons."""

from __future__ import annotations

import dataclasses
import re
from pathlib import PurePosixPath

from tree import Tree, Violation

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# What an angle-bracket header belongs to. A name without dot and slash is the C++ library's.
C_LIBRARY = re.compile(
    r"^(assert|ctype|errno|float|inttypes|limits|math|setjmp|signal|stdalign|stdarg|stdbool|stddef"
    r"|stdint|stdio|stdlib|string|time|wchar)\.h$"
)
SYSTEM = re.compile(r"^(sys/[a-z_]+|fcntl|unistd|dirent|pthread|sched|poll|termios|dlfcn)\.h$")
PACKAGES = {
    "highway": re.compile(r"^hwy/"),
    "xxhash": re.compile(r"^xxhash\.h$"),
    "json": re.compile(r"^nlohmann/"),
    "fmt": re.compile(r"^fmt/"),
    "pcre2": re.compile(r"^pcre2\.h$"),
    "utf8proc": re.compile(r"^utf8proc\.h$"),
    "cli11": re.compile(r"^CLI/"),
    "gtest": re.compile(r"^(gtest|gmock)/"),
    "rapidcheck": re.compile(r"^rapidcheck(/|\.h$)"),
    "benchmark": re.compile(r"^benchmark/"),
    "cuda": re.compile(r"^(cuda|cub|cooperative_groups|thrust|nvtx3?)[A-Za-z0-9_]*(\.h|/|\.cuh)"),
    "torch": re.compile(r"^(torch|ATen|c10)/"),
}


@dataclasses.dataclass(frozen=True)
class Room:
    """rooms: first folders of quoted includes; packages: names of PACKAGES, or c, system."""

    folder: str
    rooms: frozenset[str]
    packages: frozenset[str] = frozenset()


def room(folder: str, rooms: str, packages: str = "") -> Room:
    return Room(folder, frozenset(rooms.split()), frozenset(packages.split()))


# xxhash: checksums of sessions and fingerprints of models.
RUNTIME_PACKAGES = "c system json fmt pcre2 utf8proc xxhash"

# The longest folder that fits rules. A folder that is not listed (tests, bench) is free.
ROOMS = [
    room("include/leapquant", "leapquant", "c"),
    # The public header holds the words that C and C++ share: status, formats, shapes.
    room("src/core", "core leapquant"),
    room("src/reference", "core reference"),
    room("src/cpu", "core cpu", "highway"),
    room("src/cuda", "core cuda", "cuda"),
    room("src/backend", "core reference cpu cuda backend", "xxhash"),
    # pthread: a thread that the host refuses is a status; std::thread would throw. mman: slots.
    room("src/capi", "core backend capi leapquant", "system xxhash"),
    room("runtime", "leapquant runtime", RUNTIME_PACKAGES),
    room("runtime/kernels", "leapquant runtime", RUNTIME_PACKAGES + " highway"),
    room("runtime/cuda", "leapquant runtime", RUNTIME_PACKAGES + " cuda"),
    room("lab", "leapquant runtime lab", "c system json fmt"),
    room("tool", "leapquant runtime lab tool", "c system json fmt cli11"),
    room("examples", "leapquant", "c"),
    room("python", "leapquant", "c torch"),
]


def room_of(path: str) -> Room | None:
    fitting = [r for r in ROOMS if path.startswith(r.folder + "/")]
    return max(fitting, key=lambda r: len(r.folder), default=None)


def package_of(header: str) -> str:
    if "." not in header and "/" not in header:
        return "std"
    if C_LIBRARY.match(header):
        return "c"
    if SYSTEM.match(header):
        return "system"
    return next((name for name, pattern in PACKAGES.items() if pattern.match(header)), "unknown")


def package_violation(where: Room, header: str) -> str | None:
    package = package_of(header)
    if package == "std" or package in where.packages:
        return None
    allowed = ", ".join(["the C++ library", *sorted(where.packages)])
    return f"<{header}> ({package}) has no place in {where.folder}, which may use {allowed}"


def quoted_violation(tree: Tree, where: Room, path: str, header: str) -> str | None:
    if ".." in PurePosixPath(header).parts:
        return f'"{header}" climbs out of its folder; name it from the root of its room'
    beside = (PurePosixPath(path).parent / header).as_posix()
    if "/" not in header and (tree.root / beside).is_file():
        return None
    first = header.split("/")[0]
    if first not in where.rooms:
        allowed = ", ".join(f"{name}/" for name in sorted(where.rooms))
        return f'{where.folder} may not include "{header}"; it sees {allowed} only'
    return None


def include_directions(tree: Tree) -> list[Violation]:
    violations = []
    torch_files = set()
    for path in tree.cpp:
        where = room_of(path)
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            bracket, header = match.groups()
            if package_of(header) == "torch":
                torch_files.add(path)
            if where is None:
                continue
            # Highway's own manual writes its headers in quotes. A room that is called like a
            # package, cuda, is a room where it may be seen.
            is_room = bracket == '"' and header.split("/")[0] in where.rooms
            if bracket == "<" or (package_of(header) in PACKAGES and not is_room):
                sentence = package_violation(where, header)
            else:
                sentence = quoted_violation(tree, where, path, header)
            if sentence:
                violations.append(Violation(path, number, sentence))
    for path in sorted(torch_files)[1:]:
        violations.append(Violation(path, 1, "torch headers belong into one file only"))
    return violations
