"""Whether a job trains at all: what helps training does not help one that serves."""

import numpy as np

from .attribution.facts import gather
from .attribution.phases import BACKWARD, FORWARD, OPTIMIZER, run_starts
from .attribution.signs import Sign
from .interface import DeviceProfile


def serves(profile: DeviceProfile) -> bool:
    """Whether the job trains nothing: as recorded, or as far as a recording of several forwards shows."""
    facts = gather(profile.snapshot, profile.device_snapshot)
    if (facts.signs & (Sign.OPTIMIZER_INIT | Sign.OPTIMIZER | Sign.ENGINE)).any():
        return False
    if np.isin(facts.phases.phase, (BACKWARD, OPTIMIZER)).any():
        return False
    job = profile.snapshot.recording
    if job is not None:
        return not job.facts.get("optimizers") and job.facts.get("training_mode") is not True
    return len(run_starts(facts.phases, FORWARD)) > 1
