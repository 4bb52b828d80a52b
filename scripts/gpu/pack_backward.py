#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles variants of the backward's kernels into a folder for run_backward.py: DIR NAME=FIELDS ...

FIELDS are Config's, as "head_dim=64,head_dim_v=64,block_m=128". Each is compiled with and without a causal mask.
"""

import argparse
import json
from pathlib import Path

from compile_kernel import ROOT, compile_kernel

NAMESPACE = "strobe::hopper::backward"
# Config's fields in order, with their defaults.
FIELDS = {
    "element": "bf16",
    "head_dim": 128,
    "head_dim_v": 128,
    "consumer_warpgroups": 2,
    "block_m": 64,
    "q_stages": 3,
    "do_stages": 2,
    "kv_stages": 1,
    "mask_right": False,
    "mask_left": False,
    "staged_dq": True,
    "turns": True,
    "by_roles": False,
    "persistent": False,
}


RULE = ("element", "mask_right", "mask_left")  # of ScoreRule


def spell(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def rule_text(config):
    """The ScoreRule of a configuration."""
    masks = ",".join(f".{n}={spell(config[n])}" for n in ("mask_right", "mask_left"))
    return f"strobe::ScoreRule{{.element=strobe::Element::{config['element']},{masks}}}"


def config_text(config):
    fields = [f".{n}={spell(config[n])}" for n in FIELDS if n not in RULE]
    return f"{NAMESPACE}::Config{{.rule={rule_text(config)},{','.join(fields)}}}"


def parse(fields):
    config = dict(FIELDS)
    for field in filter(None, fields.split(",")):
        name, value = field.split("=")
        assert name in config, name
        old = config[name]
        config[name] = value if isinstance(old, str) else value == "true" if isinstance(old, bool) else int(value)
    return config


def build(folder, stem, header, instantiation, cuda):
    cubin, name, log = compile_kernel(header, instantiation, cuda)
    report = [x for x in log.splitlines() if "error" in x or ("C751" in x and "C7519" not in x) or "spill" in x]
    print(stem, "; ".join(x.strip()[:110] for x in report), flush=True)
    if cubin is None:
        raise SystemExit(log)
    (folder / f"{stem}.cubin").write_bytes(cubin)
    return {"cubin": f"{stem}.cubin", "symbol": name}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--cuda", type=Path, default=ROOT / "build/cuda/nvidia/cu13")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    manifest = {"prepare": {}, "variants": []}
    for threads in (8, 16, 32):
        for element in ("bf16", "fp16"):
            manifest["prepare"][f"{element}_{threads}"] = build(
                arguments.folder,
                f"prepare_{element}_{threads}",
                "kernels/steps/prepare_backward.h",
                "strobe::steps::prepare_backward<strobe::steps::PrepareBackwardConfig{"
                f".element=strobe::Element::{element},.threads_per_row={threads}}}>",
                arguments.cuda,
            )
    for variant in arguments.variants:
        name, _, fields = variant.partition("=")
        for causal in (False, True):
            config = {**parse(fields), "mask_right": causal}
            stem = f"{name}_{'causal' if causal else 'full'}"
            text = config_text(config)
            entry = {"name": name, "config": config}
            entry["main"] = build(
                arguments.folder,
                stem,
                "kernels/hopper/backward/kernel.h",
                f"{NAMESPACE}::kernel<{text}>",
                arguments.cuda,
            )
            if not config["by_roles"]:
                entry["finish"] = build(
                    arguments.folder,
                    stem + "_finish",
                    "kernels/hopper/backward/finish.h",
                    f"{NAMESPACE}::finish_query_gradient<{text}>",
                    arguments.cuda,
                )
            if config["by_roles"]:
                entry["query"] = {
                    warpgroups: build(
                        arguments.folder,
                        f"{stem}_query{warpgroups}",
                        "kernels/hopper/backward/query_kernel.h",
                        f"{NAMESPACE}::query_gradient<{NAMESPACE}::QueryGradientConfig{{"
                        f".rule={rule_text(config)},.head_dim={config['head_dim']},"
                        f".consumer_warpgroups={warpgroups}}}>",
                        arguments.cuda,
                    )
                    for warpgroups in (2, 3)
                }
            manifest["variants"].append(entry)
    (arguments.folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


if __name__ == "__main__":
    main()
