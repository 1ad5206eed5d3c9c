# SPDX-License-Identifier: Apache-2.0
"""Writes bench/results/h200.md and h200.svg from h200.jsonl and h200.machine.json.

The plot shows the speed-up of the library's decode over FLA's FP32 kernel in its better layout, by
batch.
Usage: report_h200.py [folder of the results]
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

COLUMNS = (
    ("what", "state"),
    ("batch", "batch"),
    ("tokens", "tokens"),
    ("boundaries", "schedule"),
    ("us", "us"),
    ("slowest phase", "slowest_us"),
    ("bytes", "bytes"),
    ("GB/s", "gb_per_s"),
    ("of the copy", "copy_share"),
    ("run", "run"),
)

PARTS = (
    ("what", "state"),
    ("part", "variant"),
    ("batch", "batch"),
    ("boundaries", "schedule"),
    ("us", "us"),
    ("slowest phase", "slowest_us"),
    ("run", "run"),
)

# What folds cost: a step with them over a step without.
FOLDS = (
    ("what", "state"),
    ("batch", "batch"),
    ("tokens", "tokens"),
    ("us", "us"),
    ("without folds", "without_us"),
    ("over it", "ratio"),
    ("fastest phase", "fastest_us"),
    ("slowest phase", "slowest_us"),
    ("run", "run"),
)

PREFILL = (
    ("what", "state"),
    ("activations", "variant"),
    ("sequences", "batch"),
    ("tokens", "tokens"),
    ("us", "us"),
    ("bytes", "bytes"),
    ("GB/s", "gb_per_s"),
    ("run", "run"),
)


def text(row, key):
    value = row.get(key)
    if value is None:
        return "-"
    if key == "copy_share":
        return f"{100 * value:.0f} %"
    if key == "bytes":
        return f"{value / 1e6:.1f} M"
    if key == "variant" and value.startswith("prefill"):
        return value.split(",")[1].strip()
    if key == "ratio":
        return f"{value:.2f}"
    if key in ("us", "slowest_us", "fastest_us", "without_us"):
        return f"{value:.1f}"
    if key == "state":
        if row["peer"]:
            return f"{row['family']} {row['peer']}"
        decays = f", {row['decays']} decays" if "decays" in row and row["family"] == "kda" else ""
        dims = ""
        if "k_dim" in row and row["variant"].split(",")[0] == "cuda":
            dims = f", {row['k_dim']} x {row['v_dim']}"
        heads = f", {row['heads']} heads" if row["heads"] != 32 else ""
        return f"{row['family']} `{value}` (rank {row['rank']}{decays}{dims}{heads})"
    return str(value)


def table(rows, columns=COLUMNS):
    names = [name for name, _ in columns]
    keys = [key for _, key in columns]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(text(row, key) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def with_and_without_folds(rows):
    """Staggered rows of the library whose decode alone was timed in the same run."""

    def case(row):
        return tuple(
            row.get(key) for key in ("family", "state", "batch", "tokens", "decays", "run")
        )

    alone = {case(row): row["us"] for row in rows if " decode alone" in row.get("variant", "")}
    return [
        {**row, "without_us": alone[case(row)], "ratio": row["us"] / alone[case(row)]}
        for row in rows
        if row.get("variant") == "library" and row["schedule"] == "staggered" and case(row) in alone
    ]


OURS = {
    "int8 r = 4": ("int8", "library"),
    "bf16 windowed": ("bf16", "cuda-plain-128"),
    "fp32 per step": ("fp32:step", "cuda-plain-128"),
}


def speedups(rows):
    """Name of a state -> batch -> FLA's time in its better layout over ours, GDN."""
    peers = {}
    for row in rows:
        if row["peer"] and row["family"] == "gdn" and row["tokens"] == 1:
            batch = row["batch"]
            peers[batch] = min(row["us"], peers.get(batch, row["us"]))
    result = {}
    for name, (state, variant) in OURS.items():
        for row in rows:
            if (
                row.get("variant") == variant
                and row["state"] == state
                and row["family"] == "gdn"
                and row["tokens"] == 1
                and row["schedule"] != ("aligned" if row["batch"] >= 64 else "staggered")
                and row["batch"] in peers
            ):
                ratio = peers[row["batch"]] / row["us"]
                result.setdefault(name, {})[row["batch"]] = ratio
    return result


def plot(ratios, path):
    mpl.rcParams["svg.hashsalt"] = "h200"  # the same plot is the same file
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for name, points in sorted(ratios.items()):
        batches = sorted(points)
        axes.plot(batches, [points[b] for b in batches], marker="o", label=name)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("sequences in the batch, 32 heads of 128 x 128")
    axes.set_ylabel("times as fast as FLA, folds included")
    axes.set_title("Decode of GDN on one H200")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def sentence(number, run):
    """A run of h200.machine.json; the driver only where it is not the one of all others."""
    text = (
        f"- run {number}, {run['date']}: `{run['command']}`; commit: {run['commit']}; copy "
        f"{run['copy_gb_per_s']} GB/s"
    )
    return text + (f"; driver {run['driver']}" if "driver" in run else "")


def write_report(folder):
    rows = [json.loads(line) for line in (folder / "h200.jsonl").read_text().splitlines()]
    machine = json.loads((folder / "h200.machine.json").read_text())
    ratios = speedups(rows)
    plot(ratios, folder / "h200.svg")
    library = [row for row in rows if row.get("variant") == "library"]
    plain = [row for row in rows if row.get("variant") == "cuda-plain-128"]
    general = [row for row in rows if row.get("variant", "").split(",")[0] == "cuda"]
    prefill = [row for row in rows if row.get("variant", "").startswith("prefill")]
    shown = {id(row) for row in library + plain + general + prefill}
    analysis = [row for row in rows if not row["peer"] and id(row) not in shown]
    peers = [row for row in rows if row["peer"]]
    parts = [
        "# Kernels on one H200",
        "Written by `bench/report_h200.py` from `h200.jsonl` and `h200.machine.json`; not by hand.",
        "32 value heads of 128 x 128, BF16 inputs and outputs, one token unless said. Medians; the "
        "mean over all phases of a window of 16, folds and checks of inputs included. Slot sets "
        "rotate past the second cache level. Bytes are what the step must move at least.",
        "\n".join(
            f"- {name}: {machine[name]}" for name in ("gpu", "driver", "toolkit", "clocks", "peer")
        ),
        "\n".join(sentence(number, run) for number, run in machine["runs"].items()),
        "## The library",
        table(library),
        "## Folds: steps with staggered folds, and decode alone",
        table(with_and_without_folds(rows), FOLDS),
        "## Plain states, BF16 and FP32 (kernels of their own)",
        table(plain),
        "## General kernels: any layout, not tuned",
        table(general),
        "## Prefill",
        table(prefill, PREFILL),
        "## Parts (pairs of warps a head / blocks a multiprocessor or in all)",
        table(analysis, PARTS),
        "## Peers: decode with FP32 states, and prefill",
        table(peers),
        "## Times as fast as FLA's FP32 kernel in its better layout, GDN",
        "\n".join(
            f"- {name}: "
            + ", ".join(f"batch {batch} {ratio:.2f}" for batch, ratio in sorted(points.items()))
            for name, points in sorted(ratios.items())
        ),
        "![speed-up](h200.svg)",
    ]
    (folder / "h200.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    write_report(Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results"))
