# SPDX-License-Identifier: Apache-2.0
"""Each rule of the house, on a tree made here: a sound one passes, and each fault is found."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

import laws
from include_laws import include_directions
from tree import Tree

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"

SOUND = {
    "README.md": "# X\n\nHere: [text](docs/A.md#the-first-part).\n\n```\n./run\n```\n",
    "docs/A.md": "# A\n\n## The first part\n\n[back](../README.md)\n",
    "include/leapquant/leapquant.h": LICENCE + "#include <stdint.h>\n",
    "src/core/a.h": LICENCE + "#include <cstdint>\n",
    "src/core/a.cpp": LICENCE + '#include "core/a.h"\n',
    "src/cpu/a.cpp": LICENCE + '#include "hwy/highway.h"\n#include "core/a.h"\n',
    "src/backend/a.cpp": LICENCE + '#include "cpu/a.h"\n#include "reference/a.h"\n',
    "src/capi/a.cpp": LICENCE + '#include "backend/a.h"\n#include "leapquant/leapquant.h"\n',
    "runtime/a.cpp": LICENCE + '#include <fcntl.h>\n#include "leapquant/leapquant.hpp"\n',
    "runtime/kernels/a.cpp": LICENCE + "#include <hwy/highway.h>\n",
    "tool/main.cpp": LICENCE + '#include <CLI/CLI.hpp>\n#include "lab/a.h"\n',
    "models/gdn-16m/model.safetensors": "w" * 300_000,
    "scripts/x": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n",
}

# Rule, file, content. Each must be the only rule that complains, and about that file.
FAULTS = [
    ("include_directions", "src/core/b.cpp", LICENCE + '#include "cpu/a.h"\n'),
    ("include_directions", "src/core/b.cpp", LICENCE + "#include <hwy/highway.h>\n"),
    ("include_directions", "src/core/b.cpp", LICENCE + '#include "hwy/highway.h"\n'),
    ("include_directions", "src/core/b.cpp", LICENCE + "#include <unistd.h>\n"),
    ("include_directions", "src/core/b.cpp", LICENCE + '#  include "../cpu/a.h"\n'),
    ("include_directions", "src/reference/b.cpp", LICENCE + '#include "cpu/a.h"\n'),
    ("include_directions", "src/cpu/b.cpp", LICENCE + '#include "reference/a.h"\n'),
    ("include_directions", "src/cpu/b.cpp", LICENCE + '#include "leapquant/leapquant.h"\n'),
    ("include_directions", "src/cpu/b.cpp", LICENCE + "#include <cuda_runtime.h>\n"),
    ("include_directions", "src/capi/b.cpp", LICENCE + '#include "cpu/a.h"\n'),
    ("include_directions", "runtime/b.cpp", LICENCE + '#include "core/a.h"\n'),
    ("include_directions", "runtime/b.cpp", LICENCE + '#include "src/core/a.h"\n'),
    ("include_directions", "runtime/b.cpp", LICENCE + '#include "lab/a.h"\n'),
    ("include_directions", "runtime/b.cpp", LICENCE + "#include <hwy/highway.h>\n"),
    ("include_directions", "lab/b.cpp", LICENCE + '#include "tool/a.h"\n'),
    ("include_directions", "tool/b.cpp", LICENCE + '#include "backend/a.h"\n'),
    ("include_directions", "examples/c/b.c", LICENCE + '#include "runtime/a.h"\n'),
    ("licence_line", "src/core/b.cpp", "#include <vector>\n"),
    ("licence_line", "scripts/y", "#!/bin/sh\necho\n"),
    ("licence_line", "tests/z.py", '"""Text."""\n'),
    ("file_length", "src/core/b.cpp", LICENCE + "int x;\n" * 600),
    ("file_length", "include/leapquant/leapquant.h", LICENCE + "int x;\n" * 900),
    ("line_shape", "src/core/b.cpp", LICENCE + "// " + "x" * 98 + "\n"),
    ("line_shape", "src/core/b.cpp", LICENCE + "int x; \n"),
    ("line_shape", "src/core/b.cpp", LICENCE + "\tint x;\n"),
    ("line_shape", "src/core/b.cpp", LICENCE + "int x;\r\n"),
    ("line_shape", "src/core/b.cpp", LICENCE + "int x;"),
    ("line_shape", "docs/B.md", "# B \n"),
    ("names_say_something", "src/core/string_utils.h", LICENCE),
    ("names_say_something", "lab/common/b.cpp", LICENCE),
    ("names_say_something", "src/core/b.h", LICENCE + "namespace helpers {}\n"),
    ("no_leftovers", "src/core/b.h", LICENCE + "// TO" + "DO: think\n"),
    ("no_leftovers", "docs/B.md", "See /ho" + "me/someone/file.\n"),
    ("library_is_silent", "src/core/b.cpp", LICENCE + 'void f() { std::printf("x"); }\n'),
    ("library_is_silent", "src/capi/b.cpp", LICENCE + "void f() { std::abort(); }\n"),
    ("library_is_silent", "src/cpu/b.cpp", LICENCE + "void f() { throw 1; }\n"),
    (
        "library_allocates_without_throwing",
        "src/core/b.cpp",
        LICENCE + "#include <vector>\nstd::vector<int> x;\n",
    ),
    (
        "library_allocates_without_throwing",
        "src/capi/b.cpp",
        LICENCE + "int* f() { return new int[3]; }\n",
    ),
    ("links_resolve", "docs/B.md", "[gone](gone.md)\n"),
    ("links_resolve", "docs/B.md", "[gone](A.md#the-second-part)\n"),
    ("links_resolve", "docs/B.md", '<img src="gone.svg">\n'),
    ("readme_starts_fast", "README.md", "# X\n" + "\n" * 30 + "./run\n"),
    ("readme_starts_fast", "README.md", "# X\n./run\n" + "text\n" * 198),
    ("tree_is_small", "models/other/model.safetensors", "w" * 300_000),
]


def write_tree(folder: str, files: dict[str, str]) -> Tree:
    for path, content in files.items():
        file = Path(folder, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode())
    return Tree(Path(folder))


def check(files: dict[str, str]) -> dict[str, list[str]]:
    """The paths that each rule complains about."""
    with tempfile.TemporaryDirectory() as folder:
        tree = write_tree(folder, files)
        found = {name: [v.path for v in law(tree)] for name, law in laws.LAWS.items()}
        return {name: paths for name, paths in found.items() if paths}


class LawsTest(unittest.TestCase):
    def test_a_sound_tree_passes(self):
        self.assertEqual(check(SOUND), {})

    def test_every_fault_is_found_by_its_rule_alone(self):
        for rule, path, content in FAULTS:
            with self.subTest(rule=rule, path=path, content=content[-60:]):
                self.assertEqual(check({**SOUND, path: content}), {rule: [path]})

    def test_every_rule_has_a_fault(self):
        self.assertEqual({rule for rule, _, _ in FAULTS}, set(laws.LAWS))

    def test_comments_of_the_library_may_name_what_it_does_not_do(self):
        quiet = LICENCE + "// Never calls abort(), printf() or throw.\n"
        self.assertEqual(check({**SOUND, "src/core/b.cpp": quiet}), {})

    def test_torch_headers_in_a_second_file(self):
        torch = LICENCE + "#include <torch/library.h>\n"
        files = {**SOUND, "python/a.cpp": torch}
        self.assertEqual(check(files), {})
        files["python/b.cpp"] = torch
        self.assertEqual(check(files), {"include_directions": ["python/b.cpp"]})

    def test_a_large_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = write_tree(folder, SOUND)
            with Path(folder, "table.csv").open("wb") as file:
                file.truncate(laws.MAX_TRACKED_BYTES)
            self.assertEqual([v.path for v in laws.tree_is_small(tree)], ["."])

    def test_a_source_that_no_target_compiles(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = write_tree(folder, {"src/core/a.cpp": "", "src/core/b.cpp": ""})
            commands = Path(folder, "compile_commands.json")
            entry = {"directory": folder, "file": "src/core/a.cpp", "command": ""}
            commands.write_text(json.dumps([entry]), encoding="utf-8")
            found = [v.path for v in laws.sources_are_built(tree, commands)]
            self.assertEqual(found, ["src/core/b.cpp"])

    def test_ignored_files_of_a_checkout_are_not_looked_at(self):
        here = Tree(Path(__file__).resolve().parents[2])
        self.assertIn("tests/house/tree.py", here.paths)
        self.assertFalse([path for path in here.paths if "__pycache__" in path])
        self.assertEqual(include_directions(Tree(Path(tempfile.gettempdir(), "no-such"))), [])


if __name__ == "__main__":
    unittest.main()
