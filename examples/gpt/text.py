# SPDX-License-Identifier: Apache-2.0
"""The text that train.py learns, and its batches."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


def read_text(path: Path | None) -> str:
    """The file's text, or the King James Bible from Debian's package bible-kjv."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    command = ["bible", "-f", "gen1:1-rev22:21"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except FileNotFoundError:
        raise SystemExit(
            "there is no program `bible`: install Debian's package bible-kjv, or give --text FILE"
        ) from None
    return "\n".join(line.partition(" ")[2] for line in lines)


@dataclass
class Text:
    alphabet: list[str]
    tokens: Tensor  # each character's place in the alphabet

    @classmethod
    def read(cls, path: Path | None) -> "Text":
        text = read_text(path)
        alphabet = sorted(set(text))
        index_of = {character: index for index, character in enumerate(alphabet)}
        return cls(alphabet, torch.tensor([index_of[character] for character in text]))

    def batches(self, batch: int, context: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Without end, the same ones for the same seed: (tokens, the ones after them), each [batch, context]."""
        generator = torch.Generator().manual_seed(seed)
        offsets = torch.arange(context + 1)
        while True:
            starts = torch.randint(len(self.tokens) - context, (batch, 1), generator=generator)
            window = self.tokens[starts + offsets]
            yield window[:, :-1], window[:, 1:]
