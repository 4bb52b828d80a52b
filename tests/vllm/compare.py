# SPDX-License-Identifier: Apache-2.0
"""What two runs of generate.py have in common."""

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""From the prompt: several queries of a request in a step."""


def check_same(ours: dict, own: dict) -> None:
    """The same tokens of both, whose log-probabilities differ by rounding."""
    assert ours["tokens"] == own["tokens"]
    difference = max(
        abs(x - y)
        for turns in zip(ours["logprobs"], own["logprobs"], strict=True)
        for prompts in zip(*turns, strict=True)
        for x, y in zip(*prompts, strict=True)
    )
    assert difference < 1e-3
    print(f"log-probabilities within {difference:.1e}")


def check_cached(run: dict) -> None:
    """The second turn found the prompts that are longer than a block."""
    assert min(run["cached"][5:]) > 0


def check_other(broken: dict, own: dict) -> None:
    """No prompt has the same tokens."""
    assert not [a for a, b in zip(broken["tokens"][0], own["tokens"][0], strict=True) if a == b]


def check_first_tokens(ours: dict, exact: dict, least: int, bound: float, count: int = 1) -> None:
    """At least so many prompts have the same first `count` tokens in each turn, log-probabilities within `bound`."""
    for turn in range(len(ours["tokens"])):
        mine, wanted = (zip(run["tokens"][turn], run["logprobs"][turn], strict=True) for run in (ours, exact))
        pairs = [(p, q) for (a, p), (b, q) in zip(mine, wanted, strict=True) if a[:count] == b[:count]]
        assert len(pairs) >= least
        assert max(abs(p[place] - q[place]) for p, q in pairs for place in range(count)) < bound
