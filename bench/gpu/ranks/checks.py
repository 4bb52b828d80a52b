# SPDX-License-Identifier: Apache-2.0
"""What ranks compute together beside what one GPU computes: every scheme, layout and option."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import strobe
import strobe.torch
import torch
from ranks.calls import SCHEMES, Sizes, documents, draw, one_gpu, with_gradients
from ranks.group import Ranks
from torch import Tensor, distributed

LAYOUTS = ("zigzag", "contiguous", "documents")
# Of the largest element of each tensor: of 16 bits roundings of parts and of their sum, of 32 their order.
LARGEST_ERROR = {torch.bfloat16: 0.02, torch.float32: 1e-4}
COMPILERS = 8
"""Calls whose kernels each rank compiles at once, before ranks compare: others find them on disk."""

CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "row-invariant": {"causal": True, "row_invariant": True},
    "deterministic": {"causal": True, "deterministic": True},
    "documents": {"causal": True, "packed": True},
    "row-invariant documents": {"causal": True, "row_invariant": True, "packed": True},
    "no mask": {},
    "window": {"causal": True, "window": (1000, 0)},
    "softcap": {"causal": True, "softcap": 20.0},
    "causal, odd length": {"causal": True, "odd": True},
}
"""At the sizes that are measured. `packed` and `odd` are of the tensors."""


def option_cases() -> ModuleType:
    """Every option of attention on small tensors: those of the tests on the CPU."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "python"))
    return importlib.import_module("context_parallel_cases")


class Checks:
    """Results by case, layout and scheme, and the names of those that are wrong."""

    def __init__(self, ranks: Ranks, sizes: Sizes) -> None:
        self.ranks, self.sizes, self._module = ranks, sizes, option_cases()
        self.results: dict[str, Any] = {}
        self.wrong: list[str] = []
        self.left_out: list[str] = []
        self.right = 0

    def summary(self) -> dict[str, Any]:
        return {"right": self.right, "wrong": self.wrong, "left out": self.left_out, "results": self.results}

    def run(self, seconds: float, save: Callable[[], None], options: list[str] | None = None) -> None:
        """All cases, as long as there is time; of the options' those that are named, or all."""
        until = self.ranks.left() - seconds
        for name, case in CASES.items():
            self._if_time(until, name, lambda case=case: self._large(**case))
            save()
        self._if_time(until, "decode", self._decode)
        cases = {x: y for x, y in self._module.CASES.items() if options is None or x in options}
        if self.ranks.left() > until:
            self._compile(cases)
        for number, (name, given) in enumerate(cases.items()):
            self._if_time(until, f"option: {name}", lambda given=given, number=number: self._option(given, number))
            save()

    def _if_time(self, until: float, name: str, check: Callable[[], Iterator[tuple[str, dict[str, Any]]]]) -> None:
        if self.ranks.left() < until:
            self.left_out.append(name)
            return
        for how, result in _with_errors(check()):
            self.results.setdefault(name, {})[how] = result
            if result.get("wrong"):
                self.wrong.append(f"{name}: {how}")
            else:
                self.right += 1

    def _large(self, packed: bool = False, odd: bool = False, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = self.sizes.checked + (3 if odd else 0)
        ends, dim = (documents(rows), 0) if packed else (None, 1)
        tensors = draw(self.sizes, rows, self.ranks.device, packed)
        whole = with_gradients(strobe.torch.attention, tensors, one_gpu(ends, options, self.ranks.device))
        for layout, scheme in itertools.product(LAYOUTS, SCHEMES):
            cp = strobe.torch.ContextParallel(layout=layout, scheme=scheme)
            parts = [cp.shard(x, dim, cu_seqlens=ends) for x in tensors]
            try:
                mine, again = (with_gradients(cp.attention, parts, options) for _ in range(2))
            except Exception as error:
                yield f"{layout}, {scheme}", _raised(error)
                continue
            wanted = [cp.shard(x, dim, cu_seqlens=ends) for x in whole]
            same = torch.equal(mine[0], wanted[0])
            repeated = all(map(torch.equal, again, mine))
            promised = {
                "the bits of one GPU": same if options.get("row_invariant") else None,
                "the same bits again": repeated if options.get("deterministic") else None,
            }
            yield f"{layout}, {scheme}", self._compared(mine, wanted, promised)

    def _compared(self, mine: list[Tensor], wanted: list[Tensor], promised: dict[str, bool | None]) -> dict[str, Any]:
        """Errors of the worst rank, in the largest element of each tensor; NaN and infinity count as wrong."""
        errors = []
        for a, b in zip(mine, wanted, strict=True):
            finite = b[b.isfinite()].float().abs()
            largest = self.ranks.largest([finite.max().item() if finite.numel() else 0.0])[0]
            apart = (a.float() - b.float()).abs()
            apart[a == b] = 0  # of infinities, too
            errors.append(apart.max().item() / max(largest, 1e-30) if apart.numel() else 0.0)
        broken = [float(value is False) for value in promised.values()]
        not_numbers = [float(x != x) for x in errors]
        worst = self.ranks.largest([*(x if x == x else 0.0 for x in errors), *broken, *not_numbers])
        count = len(errors)
        kept = [
            name
            for (name, value), x in zip(promised.items(), worst[count:], strict=False)
            if value is not None and not x
        ]
        lost = [name for name, x in zip(promised, worst[count:], strict=False) if x]
        limit = LARGEST_ERROR[self.sizes.dtype]
        wrong = bool(lost) or any(worst[count + len(broken) :]) or max(worst[:count]) > limit
        return {"errors": [f"{x:.1e}" for x in worst[:count]], "has": kept, "lacks": lost, "wrong": wrong}

    def _decode(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """A few queries over a cache, the keys of which lie on the ranks in turns."""
        world, rank, keys = self.ranks.world, self.ranks.rank, 2 * self.sizes.checked
        q, k, v, _ = draw(self.sizes, keys, self.ranks.device)
        lengths = torch.tensor([keys - 3], dtype=torch.int32, device=self.ranks.device)
        cp = strobe.torch.ContextParallel()
        for interleave, queries in itertools.product((1, 16), (1, 4)):
            few = q[:, :queries].contiguous()
            options = {"causal": True} if queries > 1 else {}
            whole = strobe.attention(few, k, v, seqused_k=lengths, return_lse=True, **options)
            mine = torch.arange(keys, device=k.device) // interleave % world == rank
            own = [x[:, mine].contiguous() for x in (k, v)]
            shared = cp.decode(few, *own, lengths, interleave=interleave, **options)
            yield f"interleave {interleave}, {queries} queries", self._compared([*shared], [*whole], {})

    def _placed(self, given: dict[str, Any]) -> dict[str, Any]:
        """A test's case on this device; on a GPU of 16 bits."""

        def place(name: str, x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            narrow = self.ranks.on_gpus and name in ("q", "k", "v")
            return x.to(self.ranks.device, torch.bfloat16 if narrow else x.dtype)

        return {name: place(name, x) for name, x in given.items()}

    def _compile(self, cases: dict[str, dict[str, Any]]) -> None:
        """The kernels of one GPU's calls, many at once."""

        def compiled(given: dict[str, Any]) -> None:
            torch.cuda.set_device(self.ranks.device)  # of this thread
            with suppress(Exception):  # which the comparison reports
                self._module.alone(self._placed(given))

        if self.ranks.on_gpus:
            with ThreadPoolExecutor(COMPILERS) as pool:
                list(pool.map(compiled, list(cases.values())[self.ranks.rank :: self.ranks.world]))
        distributed.barrier()

    def _option(self, given: dict[str, Any], number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each scheme with one layout, in turns."""
        given = self._placed(given)
        try:
            whole = self._module.alone(given)
        except Exception as error:
            yield "one GPU", _raised(error)
            return
        for index, scheme in enumerate(SCHEMES):
            layout = LAYOUTS[(number + index) % len(LAYOUTS)]
            cp = strobe.torch.ContextParallel(layout=layout, scheme=scheme)
            try:
                mine = self._module.shared(cp, given)
            except Exception as error:
                yield f"{layout}, {scheme}", _raised(error)
                continue
            yield f"{layout}, {scheme}", self._compared_rows(cp, given, whole, mine)

    def _compared_rows(self, cp: Any, given: dict[str, Any], whole: tuple, mine: tuple) -> dict[str, Any]:
        """out, LSE, the largest score, and gradients: of this rank's rows, or summed over ranks."""
        rows = self._module.rows_of(cp, given)
        found, wanted = [*mine[:3]], [whole[0].index_select(-3, rows), whole[1].index_select(-1, rows), whole[2]]
        for name, gradient in mine[3].items():
            if self._module.has_rows(name, gradient):
                wanted.append(whole[3][name].index_select(self._module.ROW_AXES[name], rows))
            else:
                distributed.all_reduce(gradient)
                wanted.append(whole[3][name])
            found.append(gradient)
        same = torch.equal(found[0], wanted[0]) if given.get("row_invariant") else None
        return self._compared(found, wanted, {"the bits of one GPU": same})


def _with_errors(results: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What ends a check is a result, too."""
    try:
        yield from results
    except Exception as error:
        yield "the check itself", _raised(error) | {"wrong": True}


def _raised(error: Exception) -> dict[str, Any]:
    """What a scheme lacks names what has it; anything else is wrong."""
    refused = isinstance(error, NotImplementedError)
    return {"refused" if refused else "raised": f"{type(error).__name__}: {error}"[:300], "wrong": not refused}
