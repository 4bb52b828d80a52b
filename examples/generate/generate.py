# SPDX-License-Identifier: Apache-2.0
"""Continues prompts by a GPT that examples/gpt/train.py trained, with its keys and values cached in pages.

    python examples/gpt/train.py --attention strobe --checkpoint runs
    python examples/generate/generate.py runs/strobe.pt "In the beginning" "And Moses said unto the people"

Prompts of any lengths run as one batch: a step has the next chunk of one prompt beside single tokens of others. --check
writes all texts once more without a cache and compares them.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from cache import PagedCache, pages_for
from measure import positive
from tqdm import tqdm

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt"))
from attentions import strobe_attention
from model import Attention, Gpt
from text import Text
from writer import Sampling, Sequence, write, write_without_cache


def load(path: Path, text: Text, device: str) -> Gpt:
    """The model of a checkpoint, whose tokens are the places of characters in the text's alphabet."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    characters = len(state["model"]["token.weight"])
    if characters != len(text.alphabet):
        raise SystemExit(
            f"{path} was trained on a text of {characters} different characters, and this one has "
            f"{len(text.alphabet)}: give the same text"
        )
    settings = state["settings"]
    size = {name: settings[name] for name in ("width", "heads", "layers")}
    model = Gpt(characters, settings["context"], strobe_attention, **size)
    model.load_state_dict(state["model"])
    return model.to(device).eval()


def sequences_of(prompts: list[str], text: Text, context: int, options: argparse.Namespace) -> list[Sequence]:
    index_of = {character: index for index, character in enumerate(text.alphabet)}
    sampling = Sampling(options.temperature, options.top_k, options.seed)
    sequences = []
    for index, prompt in enumerate(prompts):
        unknown = sorted(set(prompt) - set(text.alphabet))
        length = len(prompt) + options.count
        if not prompt or unknown:
            reason = f"has characters that the text lacks: {unknown}" if unknown else "is empty"
            raise SystemExit(f"prompt {index + 1} {reason}")
        if length > context:
            raise SystemExit(
                f"prompt {index + 1} and {options.count} more are {length} characters: the model sees {context}"
            )
        sequences.append(Sequence([index_of[x] for x in prompt], length, sampling, index))
    return sequences


def pages_of(model: Gpt, sequences: list[Sequence], options: argparse.Namespace) -> PagedCache:
    block = model.blocks[0]
    head_dim = model.token.weight.shape[1] // block.heads
    # the GPU engine takes 16-bit tensors; on the CPU float32 leaves nothing but the order of sums to differ.
    dtype = torch.float16 if options.device.startswith("cuda") else torch.float32
    needed = [pages_for(sequence.length, options.page_size) for sequence in sequences]
    pages = options.pages or sum(needed)
    if pages < max(needed):
        raise SystemExit(f"--pages {pages} is too few: the longest text takes {max(needed)}")
    sizes = (len(model.blocks), pages, options.page_size, block.heads, head_dim)
    return PagedCache(*sizes, dtype=dtype, device=options.device)


def attention_in(dtype: torch.dtype) -> Attention:
    """Attention of tensors rounded to the cache's dtype."""
    return lambda q, k, v: strobe_attention(*(x.to(dtype) for x in (q, k, v))).to(q.dtype)


def check(model: Gpt, written: list[Sequence], again: list[Sequence], dtype: torch.dtype) -> None:
    """Ends the program if a text differs from the one without a cache."""
    count = sum(sequence.length - len(sequence.tokens) for sequence in again)
    start = time.perf_counter()
    with tqdm(desc="without a cache", total=count, unit="token", disable=None) as bar:
        write_without_cache(model, again, attention_in(dtype), bar.update)
    seconds = time.perf_counter() - start
    print(f"without a cache: {count / seconds:,.0f} tokens/s")
    for a, b in zip(written, again, strict=True):
        if a.tokens != b.tokens:
            raise SystemExit(f"text {a.index + 1} differs from the one without a cache")
    logits = [torch.stack([row for sequence in texts for row in sequence.logits]) for texts in (written, again)]
    furthest = (logits[0] - logits[1]).abs().max().item()
    print(f"the texts are the same; logits differ by at most {furthest:.1e}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a file that train.py --checkpoint wrote")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument("--text", type=Path, help="the text that the model was trained on, if not the Bible")
    parser.add_argument("--count", type=positive, default=100, help="characters to write after each prompt")
    parser.add_argument("--samples", type=positive, default=1, help="texts for each prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: always the most probable character")
    parser.add_argument("--top-k", type=int, default=0, help="draw from the most probable so many; 0: from all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page-size", type=positive, default=16, help="tokens of a page")
    parser.add_argument(
        "--pages", type=positive, help="of the cache; texts wait for free ones. By default enough for all"
    )
    parser.add_argument("--chunk", type=positive, default=64, help="tokens of a prompt in a step")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--check", action="store_true", help="compare with texts written without a cache")
    return parser.parse_args()


def main() -> None:
    options = parse()
    text = Text.read(options.text)
    model = load(options.checkpoint, text, options.device)
    prompts = [prompt for prompt in options.prompts for _ in range(options.samples)]
    sequences, again = (sequences_of(prompts, text, model.context, options) for _ in range(2))
    cache = pages_of(model, sequences, options)
    count = options.count * len(prompts)
    start = time.perf_counter()
    with tqdm(desc="writing", total=count, unit="token", disable=None) as bar:
        try:
            write(model, sequences, cache, options.chunk, bar.update)
        except NotImplementedError as error:  # the device's engine has no pages
            raise SystemExit(str(error)) from None
    seconds = time.perf_counter() - start
    for sequence in sequences:
        print("".join(text.alphabet[token] for token in sequence.tokens), end="\n\n")
    print(f"{count:,} tokens of {len(prompts)} texts in {seconds:.2f} s: {count / seconds:,.0f} tokens/s")
    if options.check:
        check(model, sequences, again, cache.k.dtype)


if __name__ == "__main__":
    main()
