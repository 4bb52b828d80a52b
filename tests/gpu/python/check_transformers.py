#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text of transformers on a GPU through Strobe: a static cache, and continuous batching over pages by the drop-ins.

Needs a GPU and transformers, and for continuous batching a distribution called flash-attn that holds Strobe's drop-in.
STROBE_TEST_DEVICE=cpu: all but continuous batching on the CPU.

The model is a Llama with random weights in bfloat16. Every token must be the best one, or within `--gap` of it, where
the same weights in float32 with transformers' own eager attention read the prompt and the text. The texts are compared
with those of eager attention in bfloat16, too.
"""

import argparse
import os
import sys
import traceback

import torch
import transformers
from strobe.integrations import kv_cache
from strobe.integrations.transformers import register

DEVICE = os.environ.get("STROBE_TEST_DEVICE", "cuda")
LENGTHS = (5, 40, 17, 129, 64, 250, 33, 8)


def model_of(implementation):
    """In bfloat16."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        attn_implementation=implementation,
        initializer_range=0.05,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval().to(DEVICE, torch.bfloat16)


def prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 512, (length,), generator=generator).tolist() for length in LENGTHS]


class Counts:
    """Calls of the drop-ins over caches, and how many of them copied pages first."""

    def __init__(self):
        self.calls = self.copies = 0
        self.cached_attention, self.gathered = kv_cache.cached_attention, kv_cache.gathered

    def __enter__(self):
        import flash_attn.flash_attn_interface as drop_in

        def cached_attention(*arguments, **options):
            self.calls += 1
            return self.cached_attention(*arguments, **options)

        def gathered(*arguments):
            self.copies += 1
            return self.gathered(*arguments)

        kv_cache.cached_attention = drop_in.cached_attention = cached_attention
        kv_cache.gathered = gathered
        return self

    def __exit__(self, *_):
        import flash_attn.flash_attn_interface as drop_in

        kv_cache.cached_attention = drop_in.cached_attention = self.cached_attention
        kv_cache.gathered = self.gathered


def largest_gap(reference, prompt, text):
    """By how much the best logit exceeds a token's, at most."""
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + text], device=DEVICE)).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(text, device=DEVICE)[:, None])[:, 0]
    return float((logits.max(1).values - chosen).max())


def one_by_one(implementation, count, **settings):
    model = model_of(implementation)
    texts = []
    for prompt in prompts():
        ids = torch.tensor([prompt], device=DEVICE)
        result = model.generate(ids, max_new_tokens=count, do_sample=False, disable_compile=True, **settings)
        texts.append(result[0, len(prompt) :].tolist())
    return texts


def padded(implementation, count, **settings):
    """All prompts in a batch, padded on the left."""
    most = max(LENGTHS)
    ids = torch.tensor([[0] * (most - len(p)) + p for p in prompts()], device=DEVICE)
    mask = torch.tensor([[0] * (most - n) + [1] * n for n in LENGTHS], device=DEVICE)
    model = model_of(implementation)
    result = model.generate(
        ids, attention_mask=mask, max_new_tokens=count, do_sample=False, disable_compile=True, **settings
    )
    return result[:, most:].tolist()


def continuous(implementation, count, **settings):
    model = model_of(implementation)
    config = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
    options = {"continuous_batching_config": transformers.ContinuousBatchingConfig(**settings)} if settings else {}
    results = model.generate_batch(prompts(), generation_config=config, **options)
    in_order = sorted(results.values(), key=lambda result: int(str(result.request_id).rsplit("_", 1)[-1]))
    for result, prompt in zip(in_order, prompts(), strict=True):
        if list(result.prompt_ids) != prompt:
            raise AssertionError("the results are in another order than the prompts")
    return [list(result.generated_tokens) for result in in_order]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="new tokens of a prompt")
    parser.add_argument("--gap", type=float, default=0.1, help="of logits, whose standard deviation is about 1.1")
    parser.add_argument("--only", default="", help="runs whose name begins with this, and eager attention")
    arguments = parser.parse_args()
    register()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    count = arguments.count
    reference = model_of("eager").float()
    eager = one_by_one("eager", count)
    runs = {
        "eager": lambda: eager,
        "strobe": lambda: one_by_one("strobe", count),
        "strobe, static cache": lambda: one_by_one("strobe", count, cache_implementation="static"),
        "strobe, padded": lambda: padded("strobe", count),
        "strobe, padded, static cache": lambda: padded("strobe", count, cache_implementation="static"),
        "continuous, flash_attention_2": lambda: continuous("flash_attention_2", count),
        "continuous, flash_attention_2, block table": lambda: continuous(
            "flash_attention_2", count, max_blocks_per_request=16
        ),
    }
    runs = {name: run for name, run in runs.items() if name.startswith((arguments.only, "eager"))}
    if DEVICE == "cpu":
        runs = {name: run for name, run in runs.items() if not name.startswith("continuous")}
    good = True
    for name, run in runs.items():
        try:
            with Counts() as counts:
                texts = run()
        except Exception as error:
            traceback.print_exc(limit=-4)
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            good = False
            continue
        gap = max(largest_gap(reference, p, t) for p, t in zip(prompts(), texts, strict=True))
        equal = sum(a == b for a, b in zip(texts, eager, strict=True))
        complete = all(len(t) == count for t in texts)
        good = good and complete and gap <= arguments.gap
        print(
            f"{name}: {equal} of {len(texts)} texts equal those of eager, all tokens within {gap:.3f} of the best, "
            f"{counts.calls} calls over pages, {counts.copies} with copies{'' if complete else ', INCOMPLETE'}",
            flush=True,
        )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
