# SPDX-License-Identifier: Apache-2.0
"""Plots decode speed over FP32 per step, from the JSON lines of `leapquant bench --json`."""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

# Equal data give equal files.
plt.rcParams["svg.hashsalt"] = "leapquant"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help="output of leapquant bench --json")
    parser.add_argument("output", type=Path, help="SVG file")
    options = parser.parse_args()

    rows = [json.loads(line) for line in options.input.read_text().splitlines() if line.strip()]
    threads = sorted({row["threads"] for row in rows})
    names = list(dict.fromkeys((row["state"], row["policy"]) for row in rows))
    figure, panel = plt.subplots(figsize=(8, 4.5), layout="constrained")
    width = 0.8 / len(threads)
    for i, count in enumerate(threads):
        speedups = {
            (row["state"], row["policy"]): (row["speedup"], row["speedup"] / row["floor_share"])
            for row in rows
            if row["threads"] == count
        }
        places = [n + (i - (len(threads) - 1) / 2) * width for n in range(len(names))]
        panel.bar(
            places,
            [speedups[name][0] for name in names],
            width,
            label=f"{count} thread{'s' if count > 1 else ''}",
        )
        panel.plot(places, [speedups[name][1] for name in names], "k_", markersize=10)
    panel.set_xticks(range(len(names)), [f"{state}\n{policy}" for state, policy in names])
    panel.tick_params(axis="x", labelsize="small")
    panel.set_ylabel("speed-up over FP32 per step\n(dash: floor of memory and arithmetic)")
    panel.legend()
    panel.grid(axis="y", alpha=0.3)
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
