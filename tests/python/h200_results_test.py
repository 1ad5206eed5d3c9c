# SPDX-License-Identifier: Apache-2.0
"""bench/add_h200_run.py: rows find their places, runs come and go, bad input changes nothing."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(os.environ["LEAPQUANT_SOURCE_DIR"], "bench")))
import add_h200_run

FILES = ("h200.jsonl", "h200.machine.json", "h200.md", "h200.svg")


def row(us, **changes):
    """A whole row of the library; decode of GDN with `int8` states."""
    whole = {
        "family": "gdn",
        "state": "int8",
        "rank": 4,
        "window": 16,
        "heads": 32,
        "batch": 512,
        "tokens": 1,
        "schedule": "staggered",
        "us": us,
        "bytes": 435912704,
        "gb_per_s": 3242,
        "copy_share": 0.76,
        "peer": False,
        "slowest_us": us,
        "fastest_us": us,
        "decays": "fp32",
        "variant": "library",
    }
    return {**whole, **changes}


class AddH200Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.results = Path(folder.name) / "results"
        self.came = Path(folder.name) / "came"
        self.results.mkdir()
        self.came.mkdir()
        old = [row(10.0, run=1), row(20.0, run=2, batch=64)]
        machine = {
            "gpu": "NVIDIA H200, 132 multiprocessors",
            "driver": "1.0",
            "toolkit": "-",
            "clocks": "-",
            "peer": "-",
            "runs": {"1": self.run_told("a"), "2": self.run_told("b")},
        }
        self.write(self.results / "h200.jsonl", old)
        (self.results / "h200.machine.json").write_text(json.dumps(machine))
        self.told = {**self.run_told("c"), "gpu": "NVIDIA H200", "driver": "1.0"}
        self.write(self.came / "rows.jsonl", [row(9.0)])

    @staticmethod
    def run_told(commit):
        return {"date": "2026-01-01", "commit": commit, "command": "x", "copy_gb_per_s": 4000}

    @staticmethod
    def write(path, rows):
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))

    def add(self):
        (self.came / "run.json").write_text(json.dumps(self.told))
        said, told = io.StringIO(), io.StringIO()
        arguments = ["add_h200_run.py", str(self.came), str(self.results)]
        code = 0
        with (
            mock.patch.object(sys, "argv", arguments),
            contextlib.redirect_stdout(said),
        ):
            try:
                add_h200_run.main()
            except SystemExit as end:
                code = 1
                told.write(str(end.code))
        return code, said.getvalue(), told.getvalue()

    def read(self):
        lines = (self.results / "h200.jsonl").read_text().splitlines()
        machine = json.loads((self.results / "h200.machine.json").read_text())
        return [json.loads(line) for line in lines], machine

    def refused(self, sentence):
        before = {path: path.read_bytes() for path in self.results.iterdir()}
        code, _, told = self.add()
        self.assertNotEqual(code, 0)
        self.assertIn(sentence, told)
        self.assertEqual(before, {path: path.read_bytes() for path in self.results.iterdir()})

    def test_a_row_takes_the_place_of_the_same_one(self):
        code, said, told = self.add()
        self.assertEqual(code, 0, told)
        self.assertIn("9.0 (run 1: 10.0)", said)
        rows, machine = self.read()
        self.assertEqual([(r["us"], r["run"]) for r in rows], [(9.0, 3), (20.0, 2)])
        self.assertEqual(list(machine["runs"]), ["2", "3"])
        self.assertEqual(machine["runs"]["3"], self.run_told("c"))
        for name in FILES:
            self.assertTrue((self.results / name).is_file(), name)

    def test_what_differs_in_any_part_of_its_subject_is_new(self):
        for changes in ({"decays": "fp16"}, {"tokens": 4}, {"variant": "folds alone"}):
            with self.subTest(changes=changes):
                self.setUp()
                self.write(self.came / "rows.jsonl", [row(9.0, **changes)])
                code, said, told = self.add()
                self.assertEqual(code, 0, told)
                self.assertIn("(new)", said)
                self.assertEqual([r["us"] for r in self.read()[0]], [10.0, 20.0, 9.0])

    def test_another_driver_is_told_and_another_device_refused(self):
        self.told["driver"] = "2.0"
        self.assertEqual(self.add()[0], 0)
        self.assertEqual(self.read()[1]["runs"]["3"]["driver"], "2.0")
        self.assertIn("driver 2.0", (self.results / "h200.md").read_text())
        for other in ("NVIDIA H100", "NVIDIA H20", "NVIDIA"):
            self.told["gpu"] = other
            self.refused(f"the GPU is '{other}'")

    def test_broken_files_change_nothing(self):
        commit = self.told.pop("commit")
        self.refused("run.json lacks commit")
        self.told["commit"] = ""
        self.refused("run.json lacks commit")
        self.told["commit"] = commit
        lacks = {key: value for key, value in row(1.0).items() if key not in ("peer", "rank")}
        for text, sentence in (
            ("", "has no rows"),
            ("{", "rows.jsonl:1: not JSON"),
            (json.dumps(row(1.0)) + "\n[]\n", "rows.jsonl:2: not a JSON object"),
            ('{"family": "gdn"}\n', "the row lacks state, rank"),
            (json.dumps(lacks) + "\n", "the row lacks rank, peer"),
            (json.dumps(row("fast")) + "\n", "us is 'fast'; expected a number"),
            (json.dumps(row(float("nan"))) + "\n", "us is nan"),
            (json.dumps(row(0)) + "\n", "us is 0"),
            (json.dumps(row(1.0, slowest_us=True)) + "\n", "slowest_us is True"),
            (json.dumps(row(1.0, state=["int8"])) + "\n", "state is ['int8']"),
        ):
            with self.subTest(sentence=sentence):
                (self.came / "rows.jsonl").write_text(text)
                self.refused(sentence)

    def test_a_run_that_did_not_end_changes_nothing(self):
        (self.came / "rows.jsonl").unlink()
        self.refused("rows.jsonl: No such file or directory; did the run end?")
        self.write(self.came / "rows.jsonl", [row(9.0)])
        for told, sentence in ((3, "run.json: not a JSON object"), ([], "not a JSON object")):
            self.told = told
            self.refused(sentence)


if __name__ == "__main__":
    unittest.main()
