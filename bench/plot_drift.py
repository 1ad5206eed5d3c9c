# SPDX-License-Identifier: Apache-2.0
"""Plots how far formats drift over a long run, from the JSON lines of `leapquant drift --json`.

The upper panel shows the output error by position, mean over heads, the lower one the state error.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

# Equal data give equal files.
plt.rcParams["svg.hashsalt"] = "leapquant"


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def name_of(row: dict) -> str:
    return row["state"] + (" per step" if row["policy"] == "step" else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help="output of leapquant drift --json")
    parser.add_argument("output", type=Path, help="SVG file")
    parser.add_argument("--title", default="Drift from an exact state on recorded layer inputs")
    options = parser.parse_args()

    figure, panels = plt.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained")
    for row in read_lines(options.input):
        positions = [(i + 1) * row["every"] for i in range(len(row["output_errors"]))]
        panels[0].plot(positions, row["output_errors"], label=name_of(row), linewidth=1.2)
        panels[1].plot(positions, row["state_errors"], label=name_of(row), linewidth=1.2)
    for panel, label in zip(panels, ("output error", "state error"), strict=True):
        panel.set_yscale("log")
        panel.set_ylabel(label + "\n(squared, relative, mean over heads)")
        panel.grid(alpha=0.3)
    panels[1].set_xlabel("tokens")
    panels[0].legend(ncols=3, fontsize="small")
    figure.suptitle(options.title)
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
