# SPDX-License-Identifier: Apache-2.0
"""Puts the rows of a run on a device into h200.jsonl and writes the report anew.

A row takes the place of the older one that measured the same; a run that no row is left of goes
from h200.machine.json. Prints what was measured before and now.
Usage: add_h200_run.py FOLDER [folder of the results], FOLDER as written by scripts/prove_device:
rows.jsonl, and run.json with date, commit, command, copy_gb_per_s, gpu and driver.
"""

import json
import math
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


# What the report asks of every row.
NEEDED = ("family", "state", "rank", "heads", "batch", "tokens", "schedule", "us", "peer")
NUMBERS = ("us", "slowest_us", "fastest_us", "bytes", "gb_per_s", "copy_share")


def read_object(path, text):
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        sys.exit(f"{path}: not JSON: {error}")
    if not isinstance(value, dict):
        sys.exit(f"{path}: not a JSON object")
    return value


def read_text(path):
    try:
        return path.read_text()
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; did the run end?")


def read_rows(path):
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        place = f"{path}:{number}"
        row = read_object(place, line)
        missing = [key for key in NEEDED if key not in row]
        if missing:
            sys.exit(f"{place}: the row lacks {', '.join(missing)}")
        for key in SUBJECT:
            if isinstance(row.get(key), (dict, list)):
                sys.exit(f"{place}: {key} is {row[key]}; expected a word or a number")
        for key in NUMBERS:
            value = row.get(key, 1)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                sys.exit(f"{place}: {key} is {value!r}; expected a number")
            if not (math.isfinite(value) and value > 0):
                sys.exit(f"{place}: {key} is {value}; expected more than 0, and finite")
        rows.append(row)
    if not rows:
        sys.exit(f"{path} has no rows; was the run stopped?")
    return rows


def read_run(path, machine):
    run = read_object(path, read_text(path))
    missing = [key for key in RUN + DEVICE if not run.get(key)]
    if missing:
        sys.exit(f"{path} lacks {', '.join(missing)}")
    gpu = machine["gpu"].split(",")[0]
    if run["gpu"] != gpu:
        sys.exit(
            f"{path}: the GPU is '{run['gpu']}', that of the results '{gpu}'; rows of another "
            "device need a folder of results of their own"
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
