# SPDX-License-Identifier: Apache-2.0
"""Puts the rows of a run on a device into h200.jsonl and writes the report anew.

A row takes the place of the older one that measured the same; a run that no row is left of goes
from h200.machine.json. Prints what was measured before and now.
Usage: add_h200_run.py FOLDER [folder of the results], FOLDER as written by scripts/prove_device:
rows.jsonl, and run.json with date, commit, command, copy_gb_per_s, gpu and driver.
"""

import json
import sys
from pathlib import Path

import report_h200

# What a row measured. The rest are its results, and the run.
SUBJECT = (
    "family",
    "state",
    "rank",
    "window",
    "heads",
    "batch",
    "tokens",
    "schedule",
    "peer",
    "variant",
    "decays",
    "k_dim",
    "v_dim",
)
RUN = ("date", "commit", "command", "copy_gb_per_s")
DEVICE = ("gpu", "driver")


def subject(row):
    return tuple(row.get(key) for key in SUBJECT)


def read_rows(path):
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            sys.exit(f"{path}:{number}: not a JSON object: {error}")
        if not isinstance(row, dict):
            sys.exit(f"{path}:{number}: not a JSON object")
        missing = [key for key in ("family", "state", "batch", "us") if key not in row]
        if missing:
            sys.exit(f"{path}:{number}: the row lacks {', '.join(missing)}")
        rows.append(row)
    if not rows:
        sys.exit(f"{path} has no rows; was the run stopped?")
    return rows


def read_run(path, machine):
    run = json.loads(path.read_text())
    missing = [key for key in RUN + DEVICE if key not in run]
    if missing:
        sys.exit(f"{path} lacks {', '.join(missing)}")
    if not machine["gpu"].startswith(run["gpu"]):
        sys.exit(
            f"{path}: the GPU is '{run['gpu']}', that of the results '{machine['gpu']}'; rows of "
            "another device need a folder of results of their own"
        )
    told = {key: run[key] for key in RUN}
    if run["driver"] != machine["driver"]:
        told["driver"] = run["driver"]
    return told


def merged(old, new, run):
    """Old rows with the new ones in their places, those that are new at the end."""
    fresh = {subject(row): {**row, "run": run} for row in new}
    rows = [fresh.pop(subject(row), row) for row in old]
    return rows + list(fresh.values())


def replace(path, text):
    """Writes a file as a whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    came = Path(sys.argv[1])
    results = Path(sys.argv[2] if len(sys.argv) > 2 else "bench/results")
    machine = json.loads((results / "h200.machine.json").read_text())
    old = read_rows(results / "h200.jsonl")
    new = read_rows(came / "rows.jsonl")
    run = read_run(came / "run.json", machine)
    number = max(int(name) for name in machine["runs"]) + 1

    before = {subject(row): row for row in old}
    for row in new:
        was = before.get(subject(row))
        name = f"{row['family']} {row['state']} batch {row['batch']} {row.get('variant', '-')}"
        print(f"{name}: {row['us']}" + (f" (run {was['run']}: {was['us']})" if was else " (new)"))
    rows = merged(old, new, number)
    left = {str(row["run"]) for row in rows}
    machine["runs"][str(number)] = run
    machine["runs"] = {name: told for name, told in machine["runs"].items() if name in left}
    replace(results / "h200.machine.json", json.dumps(machine, indent=2) + "\n")
    replace(results / "h200.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    report_h200.write_report(results)


if __name__ == "__main__":
    main()
