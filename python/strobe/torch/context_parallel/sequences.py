# SPDX-License-Identifier: Apache-2.0
"""The sequences of a call, and the ranks that share them, on one level or two."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import distributed

from strobe.torch.context_parallel.all_to_all import Route
from strobe.torch.context_parallel.layout import Layout, divided, layout_of

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Rows by ``layout`` among the ranks of ``group``.

    With an ``inner`` group its ranks have, together and in their order, the rows of this process's rank in ``group``.
    """

    group: Any
    inner: Any
    layout: Layout
    packed: bool
    memory: dict[Any, Any] = field(default_factory=dict)
    """What calls on these sequences found out that others need, too."""

    def remembered(self, key: Any, make: Callable[[], Made]) -> Made:
        """What make() gave the first time."""
        if key not in self.memory:
            self.memory[key] = make()
        return self.memory[key]

    @property
    def batched(self) -> bool:
        return not self.packed

    @property
    def rank(self) -> int:
        """In the group, whose layout it is."""
        return distributed.get_rank(self.group)

    @property
    def inner_world(self) -> int:
        return 1 if self.inner is None else distributed.get_world_size(self.inner)

    @property
    def world(self) -> int:
        """Of all processes."""
        return self.layout.world * self.inner_world

    def inner_route(self) -> Route:
        """Between the ranks of the inner group, among which rows are contiguous."""
        rows = layout_of("contiguous", self.inner_world, (self.layout.rows(self.rank),))
        return Route(self.inner, rows, self.batched)

    def of_processes(self) -> tuple[Layout, int]:
        """The layout of all processes, and which of its ranks this one is."""
        if self.inner is None:
            return self.layout, self.rank
        world = self.inner_world
        return divided(self.layout, world), self.rank * world + distributed.get_rank(self.inner)
