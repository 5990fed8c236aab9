"""The device of a long command, tried before any work is done."""

from task2vec.errors import UsageError


def check_device(device: str | None) -> None:
    """Refuses a device that is not there before any image is read."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"--device {device} cannot be used here ({str(error).splitlines()[0]}). Leave it out, or use --device cpu."
        ) from error
