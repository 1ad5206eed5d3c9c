# SPDX-License-Identifier: Apache-2.0
"""Plots bytes of a state against its error, from JSON lines of `leapquant drift` and `inspect`.

One point per format: bytes per state element (boundary state, from `leapquant inspect --json`) and
output error (from `leapquant drift --json`).
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

# Equal data give equal files.
plt.rcParams["svg.hashsalt"] = "leapquant"


def read_sizes(path: Path) -> dict[tuple[str, str], float]:
    model = json.loads(path.read_text())
    elements = (
        len(model["recurrent_layers"])
        * model["num_v_heads"]
        * model["head_k_dim"]
        * model["head_v_dim"]
    )
    return {
        (row["state"], row["policy"]): row["boundary_bytes"] / elements for row in model["formats"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drift", type=Path, help="output of leapquant drift --json")
    parser.add_argument("sizes", type=Path, help="output of leapquant inspect --json, same formats")
    parser.add_argument("output", type=Path, help="SVG file")
    options = parser.parse_args()

    sizes = read_sizes(options.sizes)
    figure, panel = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for line in options.drift.read_text().splitlines():
        row = json.loads(line)
        key = (row["state"], row["policy"])
        if key not in sizes or row["state"] == "fp32":  # no error to show
            continue
        per_step = row["policy"] == "step"
        plus = row["state"].endswith("+") or row["state"] == "int4-compact"
        marker = "x" if per_step else "o" if plus else "s"
        panel.plot(sizes[key], row["output_error"], marker, color="C1" if per_step else "C0")
        panel.annotate(
            row["state"] + (" per step" if per_step else ""),
            (sizes[key], row["output_error"]),
            textcoords="offset points",
            xytext=(6, 4),
            fontsize="small",
        )
    panel.set_yscale("log")
    panel.set_xlim(right=max(sizes[key] for key in sizes if key[0] != "fp32") * 1.15)
    panel.set_xlabel("bytes per element of the state (FP32: 4)")
    panel.set_ylabel("output error, tokens 1,024 to 4,096")
    panel.grid(alpha=0.3)
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
