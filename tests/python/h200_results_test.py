# SPDX-License-Identifier: Apache-2.0
"""bench/add_h200_run.py: rows find their places, runs come and go, bad input changes nothing."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["LEAPQUANT_SOURCE_DIR"])
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
        return subprocess.run(
            [sys.executable, SOURCE / "bench" / "add_h200_run.py", self.came, self.results],
            capture_output=True,
            text=True,
            check=False,
        )

    def read(self):
        lines = (self.results / "h200.jsonl").read_text().splitlines()
        machine = json.loads((self.results / "h200.machine.json").read_text())
        return [json.loads(line) for line in lines], machine

    def refused(self, sentence):
        before = {path: path.read_bytes() for path in self.results.iterdir()}
        done = self.add()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(sentence, done.stderr)
        self.assertEqual(before, {path: path.read_bytes() for path in self.results.iterdir()})

    def test_a_row_takes_the_place_of_the_same_one(self):
        done = self.add()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("9.0 (run 1: 10.0)", done.stdout)
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
                done = self.add()
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("(new)", done.stdout)
                self.assertEqual([r["us"] for r in self.read()[0]], [10.0, 20.0, 9.0])

    def test_another_driver_is_told_and_another_device_refused(self):
        self.told["driver"] = "2.0"
        self.assertEqual(self.add().returncode, 0)
        self.assertEqual(self.read()[1]["runs"]["3"]["driver"], "2.0")
        self.assertIn("driver 2.0", (self.results / "h200.md").read_text())
        self.told["gpu"] = "NVIDIA H100"
        self.refused("the GPU is 'NVIDIA H100'")

    def test_broken_files_change_nothing(self):
        self.told.pop("commit")
        self.refused("run.json lacks commit")
        self.told["commit"] = "c"
        for text, sentence in (
            ("", "has no rows"),
            ("{", "rows.jsonl:1: not a JSON object"),
            (json.dumps(row(1.0)) + "\n[]\n", "rows.jsonl:2: not a JSON object"),
            ('{"family": "gdn"}\n', "the row lacks state, batch, us"),
        ):
            (self.came / "rows.jsonl").write_text(text)
            self.refused(sentence)


if __name__ == "__main__":
    unittest.main()
