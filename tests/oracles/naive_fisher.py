"""The Fisher by its definition: one weight gradient per image and label, squared, averaged over y ~ p."""

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


def naive_rows(
    network: nn.Module, names: tuple[str, ...], images: Tensor, weight: Tensor, bias: Tensor, *, is_multilabel: bool
) -> Tensor:
    """(images, filters): E_y |d log p(y|x) / d w_k|^2 / weights of filter k, every label enumerated, in float64."""
    network = copy.deepcopy(network).double().eval()
    network.requires_grad_(True)
    modules = dict(network.named_modules())
    weights = [modules[name].weight for name in names]
    rows = []
    for image in images.double():
        logits = functional.linear(network(image[None])[0], weight.double(), bias.double())
        total = [torch.zeros(w.shape[0], dtype=torch.float64) for w in weights]
        for probability, log_likelihood in label_likelihoods(logits, is_multilabel):
            gradients = torch.autograd.grad(log_likelihood, weights, retain_graph=True)
            for sums, gradient in zip(total, gradients, strict=True):
                sums += probability.item() * gradient.flatten(1).square().mean(1)
        rows.append(torch.cat(total))
    return torch.stack(rows)


def label_likelihoods(logits: Tensor, is_multilabel: bool):
    """Probability and log-likelihood of every label, or of every row of attributes."""
    if not is_multilabel:
        log_p = logits.log_softmax(0)
        yield from ((p.detach().exp(), p) for p in log_p)
        return
    for labels in itertools.product((0.0, 1.0), repeat=len(logits)):
        log_p = -functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels).to(logits), reduction="sum")
        yield log_p.detach().exp(), log_p
