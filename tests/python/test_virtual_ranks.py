# SPDX-License-Identifier: Apache-2.0
"""bench/gpu/virtual_ranks.py on the CPU: it compares its ranks with one call, and fails where they differ."""

import json
from pathlib import Path

import programs

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "gpu" / "virtual_ranks.py"


def test_ranks_in_turn_are_one_call(tmp_path):
    out = tmp_path / "ranks.json"
    sizes = ["--tokens", "200", "--heads", "4", "2", "16", "--rounds", "1"]
    programs.run([PROGRAM, out, "--ranks", "2", "3", "5", *sizes], cwd=tmp_path)
    results = json.loads(out.read_text(encoding="utf-8"))
    for layout in ("zigzag", "contiguous", "documents"):
        for world in (2, 3, 5):
            of_ranks = results[f"{layout}, {world} ranks"]
            assert len(of_ranks["forward"]["ranks, ms"]) == len(of_ranks["backward"]["ranks, ms"]) == world
