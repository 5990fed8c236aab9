"""What a network costs: its weights, and the multiplications that one image takes."""

import torch
from torch import Tensor, nn


def count_parameters(network: nn.Module) -> int:
    """How many weights it has.

    Example:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    return sum(weight.numel() for weight in network.parameters())


def count_multiplications(network: nn.Module, size: tuple[int, int]) -> float:
    """Billions of multiplications in the convolutions and linear layers for one image of `size`.

    Example:
        >>> count_multiplications(nn.Conv2d(3, 4, 3, padding=1), (10, 10)) * 1e9
        10800.0
    """
    counts: list[int] = []

    def count(module: nn.Module, _: object, output: Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        counts.append(output.numel() * weight[0].numel())

    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        weight = next(network.parameters())
        with torch.inference_mode():
            network(torch.zeros(1, 3, *size, device=weight.device, dtype=weight.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts) / 1e9
