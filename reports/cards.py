"""The cards over time as NVML told of them: PyTorch's allocator, what lies outside it, and other processes."""

from collections.abc import Sequence
from dataclasses import dataclass

from .model import CardSamples, Held
from .text import size

MOST_CARDS = 8  # drawn and told of, the fullest
TITLE = "Cards over time"
_WIDTH, _HEIGHT = 1000.0, 200.0  # of a picture, stretched to the page


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of a card over time; `key` names its colour."""

    name: str
    key: str
    bytes: tuple[int, ...]


def shown(cards: Sequence[CardSamples]) -> list[CardSamples]:
    return sorted(cards, key=lambda card: -max(card.used_bytes))[:MOST_CARDS]


def layers(card: CardSamples) -> list[Layer]:
    """From the bottom: this job's ranks, other processes, what NVML counts as used and names no process for."""
    found: list[Layer] = []
    for held in sorted(card.held, key=lambda each: (not each.own, -max(each.bytes))):
        found += _split(held)
    named = [sum(each) for each in zip(*(held.bytes for held in card.held), strict=True)] or [0] * len(card.seconds)
    rest = tuple(max(0, used - known) for used, known in zip(card.used_bytes, named, strict=True))
    return [*found, Layer("no process named", "unknown", rest)] if any(rest) else found


def _split(held: Held) -> list[Layer]:
    if not held.own:
        return [Layer(f"{held.process}, not of this job", "fragmented", held.bytes)]
    if held.reserved_bytes is None:
        return [Layer(held.process, "buffer", held.bytes)]
    inside = tuple(map(min, held.reserved_bytes, held.bytes))
    outside = tuple(all_of_it - part for all_of_it, part in zip(held.bytes, inside, strict=True))
    return [
        Layer(f"{held.process}, PyTorch's allocator", "buffer", inside),
        Layer(f"{held.process}, outside it", "outside", outside),
    ]


def heading(card: CardSamples) -> str:
    return f"{card.card} of {card.host}" if card.host else card.card


def sentence(card: CardSamples) -> str:
    """`GPU-1 of node3: at most 71.20 GiB of 79.11 GiB, at 41 s: rank 0, PyTorch's allocator 68.00 GiB, ...`."""
    at = max(range(len(card.seconds)), key=lambda row: card.used_bytes[row])
    parts = ", ".join(f"{each.name} {size(each.bytes[at])}" for each in layers(card) if each.bytes[at])
    most = f"at most {size(card.used_bytes[at])} of {size(card.total_bytes)}, at {card.seconds[at]:.0f} s"
    return f"{heading(card)}: {most}: {parts}"


def shapes(card: CardSamples) -> list[tuple[str, str]]:
    """(colour key, points of an SVG polygon) of each layer, in a picture of 1000 by 200; the top is the whole card."""
    last = max(card.seconds[-1], 1e-9)
    across = [_WIDTH * second / last for second in card.seconds]
    floor = [0] * len(across)
    found = []
    for layer in layers(card):
        top = [below + mine for below, mine in zip(floor, layer.bytes, strict=True)]
        points = [*zip(across, top, strict=True), *reversed(list(zip(across, floor, strict=True)))]
        found.append((layer.key, " ".join(f"{x:.1f},{_height(y, card.total_bytes):.2f}" for x, y in points)))
        floor = top
    return found


def _height(held: int, total: int) -> float:
    return _HEIGHT * (1 - min(1.0, held / max(1, total)))
