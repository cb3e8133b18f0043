"""What a plan says beside its candidates: what would make it fit, and where the time of its collectives goes."""

from typing import Any

from ..remedies.interface import Band, Communication, Plan


def section(plan: Plan) -> dict[str, Any]:
    return {"way_out": list(plan.way_out), "communication": _communication(plan.communication)}


def _communication(found: Communication | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "advice": found.advice,
        "strategies": {
            name: {"seconds": seconds, "step_time_factor": _band(found.step_time_factor.get(name))}
            for name, seconds in found.seconds.items()
        },
        "exchanges": [
            {
                "strategy": each.strategy,
                "what": each.what,
                "collective": each.collective,
                "count": each.count,
                "bytes": each.nbytes,
                "seconds": each.seconds,
                "algorithm": each.algorithm,
                "protocol": each.protocol,
                "bound": each.bound,
                "half_bandwidth_bytes": each.half_bandwidth_bytes,
                "why": each.why,
            }
            for each in found.exchanges
        ],
    }


def _band(band: Band | None) -> dict[str, float] | None:
    return None if band is None else {"low": band.low, "expected": band.expected, "high": band.high}
