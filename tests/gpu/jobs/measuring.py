"""What the jobs of the GPU check measure of themselves, printed as one line of JSON."""

import json
import time

import torch


def nbytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def finish(step, model, optimizer, device, more):
    """Three steps; with `oom` larger ones until it ends; with `time` the fastest of many.

    Gradients are kept, so that the peak of the last step holds every category at its full size.
    """
    for _ in range(3):
        loss = step()
    if "oom" in more:
        times = 1
        while True:
            times *= 2
            step(times)
    facts = {
        "parameter": nbytes(model.parameters()),
        "gradient": nbytes(p.grad for p in model.parameters()),
        "optimizer_state": nbytes(v for state in optimizer.state.values() for v in state.values() if on(v, device)),
        "loss": float(loss),
    }
    if device == "cuda":
        torch.cuda.synchronize()
        facts["max_allocated"] = torch.cuda.max_memory_allocated()
        facts["max_reserved"] = torch.cuda.max_memory_reserved()
    if "time" in more:
        facts["step_seconds"] = min(timed(step, device) for _ in range(10))
    print("MEASURED " + json.dumps(facts), flush=True)


def on(value, device):
    return isinstance(value, torch.Tensor) and value.device.type == device


def timed(step, device):
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
