#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles variants of the backward's kernels into a folder for run_backward.py: DIR NAME=FIELDS ...

FIELDS are Config's, as "head_dim=64,head_dim_v=64,block_m=128". Each is compiled for every --rule, which is a list of
ScoreRule's flags, as "mask_right,varlen"; by default without a mask and with a causal one.
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
    "block_m": 64,
    "q_stages": 3,
    "do_stages": 3,
    "mask_right": False,
    "mask_left": False,
    "chunked": False,
    "varlen": False,
    "softcap": False,
    "alibi": False,
    "scale_first": False,
    "by_roles": False,
    "staged_dq": True,
    "ordered": False,
    "debug": False,
}


FLAGS = ("mask_right", "mask_left", "chunked", "varlen", "softcap", "alibi", "scale_first")  # of ScoreRule


def spell(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def rule_text(config):
    """The ScoreRule of a configuration."""
    flags = ",".join(f".{n}={spell(config[n])}" for n in FLAGS)
    return f"strobe::ScoreRule{{.element=strobe::Element::{config['element']},{flags}}}"


def config_text(config):
    fields = [f".{n}={spell(config[n])}" for n in FIELDS if n not in ("element", *FLAGS)]
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
    report = [
        x.strip()[:110]
        for x in log.splitlines()
        if "error" in x or ("C75" in x and "C7519" not in x) or ("spill" in x and "0 bytes spill stores" not in x)
    ]
    print(stem, *report, sep="; ", flush=True)
    if cubin is None:
        raise SystemExit(log)
    (folder / f"{stem}.cubin").write_bytes(cubin)
    return {"cubin": f"{stem}.cubin", "symbol": name}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--cuda", type=Path, default=ROOT / "build/cuda/nvidia/cu13")
    parser.add_argument("--rule", action="append", dest="rules")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    manifest = {"prepare": {}, "variants": []}
    configs = [parse(variant.partition("=")[2]) for variant in arguments.variants]
    for element in sorted({c["element"] for c in configs}):
        for threads in (8, 16, 32):
            for varlen in (False, True):
                name = f"{element}_{threads}_{'varlen' if varlen else 'batched'}"
                manifest["prepare"][name] = build(
                    arguments.folder,
                    f"prepare_{name}",
                    "kernels/steps/prepare_backward.h",
                    "strobe::steps::prepare_backward<strobe::steps::PrepareBackwardConfig{"
                    f".element=strobe::Element::{element},.varlen={spell(varlen)},.threads_per_row={threads}}}>",
                    arguments.cuda,
                )
    sink = ("kernels/steps/sink_gradient.h", "strobe::steps::sink_gradient")
    manifest["sink"] = build(arguments.folder, "sink", *sink, arguments.cuda)
    for variant, plain in zip(arguments.variants, configs, strict=True):
        for rule in arguments.rules or ["", "mask_right"]:
            flags = [flag for flag in rule.split(",") if flag]
            assert set(flags) <= set(FLAGS), rule
            config = {**plain, **dict.fromkeys(flags, True)}
            manifest["variants"].append(build_variant(arguments, variant.partition("=")[0], config, flags))
    (arguments.folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def build_variant(arguments, name, config, flags):
    """The kernels of one configuration."""
    stem = "_".join([name, *flags])
    text = config_text(config)

    def one(suffix, header, instantiation):
        return build(
            arguments.folder, stem + suffix, f"kernels/hopper/backward/{header}.h", instantiation, arguments.cuda
        )

    entry = {"name": name, "config": config, "main": one("", "kernel", f"{NAMESPACE}::kernel<{text}>")}
    if config["by_roles"]:
        entry["query"] = {
            warpgroups: one(
                f"_query{warpgroups}",
                "query_kernel",
                f"{NAMESPACE}::query_gradient<{NAMESPACE}::QueryGradientConfig{{.rule={rule_text(config)},"
                f".head_dim={config['head_dim']},.block_m={config['block_m']},.consumer_warpgroups={warpgroups}}}>",
            )
            for warpgroups in (2, 3)
        }
    else:
        entry["finish"] = one("_finish", "finish", f"{NAMESPACE}::finish_query_gradient<{text}>")
    return entry


if __name__ == "__main__":
    main()
