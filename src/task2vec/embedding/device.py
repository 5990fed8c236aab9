"""Where to compute: the device that was asked for, if it is there."""

import torch

from task2vec.errors import UsageError


def choose_device(name: str | None) -> torch.device:
    """The device of that name, or a GPU if there is one and none was named."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        return device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device '{name}' cannot be used here ({str(error).splitlines()[0]}). Leave it out, or use --device cpu."
        ) from error
