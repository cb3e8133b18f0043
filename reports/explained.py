"""The explanation of the peak: as lines of a word and a sentence, and as the JSON report's section."""

from collections.abc import Iterator
from typing import Any

from ..diagnosers.explanation import Explanation
from .text import category_title, place, size


def lines(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """What happened, when, the largest things and why they are alive, what is usual and what is not."""
    yield "what", explanation.what
    yield "when", explanation.when
    for number, held in enumerate(explanation.largest):
        where = f", most of it from {place(held.location)}" if held.location else ""
        told = f"{size(held.bytes)} ({held.share:.0%}) {category_title(held.category)}: {held.because}{where}"
        yield ("largest" if number == 0 else ""), told
    for word, sentences in (("usual", explanation.normal), ("not usual", explanation.unusual)):
        for number, sentence in enumerate(sentences):
            yield (word if number == 0 else ""), sentence


def section(explanation: Explanation) -> dict[str, Any]:
    return {
        "rank": explanation.rank,
        "device": explanation.device,
        "what": explanation.what,
        "when": explanation.when,
        "largest": [
            {
                "category": held.category.value,
                "bytes": held.bytes,
                "share": round(held.share, 4),
                "because": held.because,
                "location": None
                if held.location is None
                else {"file": held.location.file, "line": held.location.line, "function": held.location.function},
            }
            for held in explanation.largest
        ],
        "normal": list(explanation.normal),
        "unusual": list(explanation.unusual),
    }
