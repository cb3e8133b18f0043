"""Which tensors a wrapper subclass (DTensor, float8, NF4) holds, without a read of what they hold.

`__tensor_flatten__` tells, but it is the subclass's own code, and some reads a value (torchao's float8 weights ask
whether their scale is not zero): that would wait for the GPU, and be one operation more than a checkpoint has seen.
"""

import torch


def wrapped_by(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The tensors inside, the first one first; None for a tensor that is no wrapper."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        return None
    slots = [name for kind in type(tensor).__mro__ for name in kind.__dict__.get("__slots__", ())]
    held = [getattr(tensor, name, None) for name in slots] if slots else getattr(tensor, "__dict__", {}).values()
    found = [each for each in held if isinstance(each, torch.Tensor)]
    if not found:  # behind properties
        names, _ = flatten(tensor)
        found = [each for name in names if isinstance(each := getattr(tensor, name), torch.Tensor)]
    return [each for each in found if each is not tensor]
