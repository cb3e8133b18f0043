"""Keep the keys and values of past tokens in 4 bits; a layer's are unpacked where it computes.

Applies when: a key-value cache holds a large share of the peak of a job that generates.
Saves: of 16-bit keys and values all but 4 bits and a scale with its zero point for each 64 of them; the layer that
computes has its own in full, twice while new tokens are appended. The last 128 tokens stay as they are.
Costs: everything in the cache is unpacked for each token: -55 to -89 % tokens/s for short prompts (Mistral-7B on an
A100, transformers); engines whose kernels read 8 bits (vLLM `kv_cache_dtype: fp8`) lose next to nothing.
Numerics: changed: what attention reads is rounded; published perplexities with 4 bits are near those of float16.
Conflicts: no sliding windows (transformers); not for training.
Frameworks: transformers `generate(cache_implementation="quantized", cache_config={"backend": "quanto", "nbits": 4})`;
vLLM `--kv-cache-dtype fp8`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .key_value_cache import cache_rows, peak_of, refused, uses_end

NAME = "quantized-kv-cache"
NUMERICS = Numerics.CHANGED
EFFORT = Effort.LINES
BITS, GROUP, RESIDUAL = 4, 64, 128  # transformers' QuantizedLayer: nbits, q_group_size, residual_length
STEP_TIME = Band(low=1.0, expected=2.0, high=9.0)


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    why_not = refused(case)
    return NotApplicable(NAME, why_not) if why_not else (Setting(name=NAME, options={"bits": BITS}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    bits = int(options.get("bits", BITS))
    rows = cache_rows(case)
    if not len(rows):
        return NotApplicable(NAME, "no key-value cache is in the trace")
    item = 4 if set(case.facts.bytes_of_dtype) == {"float32"} else 2
    share = (bits / 8 + 2 * item / GROUP) / item
    timeline = case.timeline
    mask = np.zeros(len(timeline), np.bool_)
    mask[rows] = True
    small = timeline.resized(mask, share)
    until = uses_end(timeline, rows)
    whole = timeline.copies(rows, birth=timeline.birth[rows] - 0.4, death=until)
    unpacked = timeline.copies(rows, birth=timeline.birth[rows] - 0.5, death=timeline.birth[rows] + 0.1)
    held = peak_of(timeline, rows)
    return Change(
        setting=Setting(name=NAME, options={"bits": bits}),
        expected=small.joined(whole, unpacked),
        low=small,
        high=None,
        step_time_factor=STEP_TIME,
        numerics=NUMERICS,
        why=f"{size(held)} of keys and values take {bits} bits and a scale for each {GROUP}, "
        f"{size(round(held * (1 - share)))} less; the layer that computes has its own in full",
        doubt=f"the last {RESIDUAL} tokens stay in full, and how a layer is unpacked is the library's",
        time_doubt="from kernels that read the packed values to unpacking them all for each token",
    )
