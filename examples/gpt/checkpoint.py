# SPDX-License-Identifier: Apache-2.0
"""A training run on disk, so that one that was killed goes on where it was."""

from pathlib import Path
from typing import Any

import parallel
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # the same file for any number of processes


def save(
    path: Path, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler, losses: list[float], settings: dict
) -> None:
    """In one piece: whoever is killed meanwhile leaves the file of before."""
    weights, moments = get_state_dict(model, optimizer, options=WHOLE)
    if parallel.rank() != 0:
        return
    state = {"model": weights, "optimizer": moments, "schedule": schedule.state_dict()}
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(state | {"losses": losses, "settings": settings}, unfinished)
    unfinished.replace(path)


def load(path: Path, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler, settings: dict) -> list[float]:
    """The losses so far; none if there is no file yet. Ends the program if the file is of another run."""
    if not path.exists():
        return []
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    for name, value in settings.items():
        if state["settings"].get(name) != value:
            raise SystemExit(f"{path} is of a run with {name} {state['settings'].get(name)}, not {value}")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )
    schedule.load_state_dict(state["schedule"])
    return state["losses"]
