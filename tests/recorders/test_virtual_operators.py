"""No operator is wrong in silence: those of torch's own database give what they give on the CPU, or stop and say so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# what CUDA does otherwise than the CPU, whose results are the reference here
OTHERWISE_ON_CUDA = {
    "fft_rfftn": "strides as cuFFT leaves them",
    "linalg_eig": "vectors by column, as cuSOLVER leaves them",
    "native_batch_norm": "evaluation makes statistics as well",
    "_native_batch_norm_legit": "evaluation makes statistics as well",
    "nonzero_static": "a transposed result",
    "tensor_split": "indices on the GPU are refused there too",
    "to": "one sample goes to the host",
}


@pytest.mark.slow
def test_every_operator_of_torchs_database() -> None:
    sweep = Path(__file__).with_name("operator_sweep.py")
    done = subprocess.run([sys.executable, str(sweep)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    samples, stopped = found.pop("samples"), found.pop("stopped", {})
    sys.stdout.write(f"\n{samples} samples; stopped at {json.dumps(stopped, indent=1)}\n")
    assert samples > 1500
    assert all(operation.startswith("aten::") for operation in stopped.values()), stopped
    assert len(stopped) <= 10
    unexpected = {
        verdict: {name: detail for name, detail in names.items() if name not in OTHERWISE_ON_CUDA}
        for verdict, names in found.items()
    }
    assert not any(unexpected.values()), unexpected
