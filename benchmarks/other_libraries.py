"""(c) Time per image of the exact engine against libraries that give a diagonal Fisher or per-image gradients.

All run torchvision's ResNet-34 with the same weights, its batch-norm in eval mode, with a head of ten classes and one
label per image drawn from the model. NNGeometry's usual way, which goes through all classes, is shown beside its
Monte-Carlo way. The libraries keep one value per weight where we keep one per filter; averaging theirs costs little.
"""

import statistics
import warnings
from collections.abc import Callable

import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import task2vec as t2v
from benchmarks.material import SIZE, resnet_weights
from benchmarks.measure import Plan, Verdict, interleave, ratio, show_table
from task2vec.fisher import PerSampleFisher

TARGET = 3
BATCH = 16
CLASSES = 10


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Ratios to every library that can run the network; the reason where one cannot."""
    warnings.simplefilter("ignore")  # the libraries' own, about hooks; ours are errors in the tests
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIZE, SIZE)
    works: dict[str, Callable[[], object]] = {
        "ours, exact": _ours(plan, images),
    }
    reasons = {}
    for name, make in (
        ("BackPACK DiagGGNMC", _backpack),
        ("NNGeometry PMatDiag, Monte Carlo", _nngeometry_monte_carlo),
        ("NNGeometry PMatDiag, all classes", _nngeometry),
        ("Opacus", _opacus),
    ):
        try:
            work = make(_network(plan), images)
            work()
            works[name] = work
        except Exception as error:  # whatever a library says of a network that it cannot run is the result
            reasons[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    seconds = interleave(works, rounds=1 if plan.is_quick else 5, clock=plan.clock)
    milliseconds = {name: statistics.median(taken) / BATCH * 1e3 for name, taken in seconds.items()}
    ratios = {name: ratio(taken, seconds["ours, exact"]) for name, taken in seconds.items()}
    print(f"\n(c) resnet34 at {SIZE} px, batches of {BATCH}", flush=True)
    rows = [(name, milliseconds[name], ratios[name]) for name in works]
    show_table(
        ["library", "ms per image", "times ours"], [*rows, *((n, "cannot run it", r) for n, r in reasons.items())]
    )
    verdicts = [
        Verdict(f"(c) resnet34: {name} / ours, exact", ratios[name], TARGET, is_at_least=True)
        for name in works
        if not name.startswith("ours")
    ]
    return {"other_libraries": {"ms_per_image": milliseconds, "ratios": ratios, "cannot": reasons}}, verdicts


def _network(plan: Plan) -> nn.Module:
    """ResNet-34 with a small random head, frozen batch-norm and no in-place operation, as the libraries' pages ask."""
    network = torchvision.models.resnet34(weights=None)
    network.load_state_dict(load_file(resnet_weights(plan.shared)), strict=False)
    network.fc = nn.Linear(network.fc.in_features, CLASSES)
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    return network.eval()


def _draw_labels(logits: Tensor) -> Tensor:
    return torch.multinomial(logits.detach().softmax(1), 1).flatten()


def _ours(plan: Plan, images: Tensor) -> Callable[[], object]:
    """An engine with one seed per image."""
    probe = t2v.load_probe("torchvision:resnet34", weights=resnet_weights(plan.shared), size=SIZE)
    engine = PerSampleFisher(probe.prepare(), probe.layers)
    seeds = torch.randn(1, BATCH, probe.feature_dim)
    return lambda: engine.rows(images, seeds)


def _backpack(network: nn.Module, images: Tensor) -> Callable[[], object]:
    """BackPACK's diagonal of the Gauss-Newton matrix from one sampled label per image."""
    from backpack import backpack, extend
    from backpack.extensions import DiagGGNMC

    model, loss_function = extend(network, use_converter=True).eval(), extend(nn.CrossEntropyLoss())

    def work() -> list[Tensor]:
        model.zero_grad()
        logits = model(images)
        with backpack(DiagGGNMC(mc_samples=1)):
            loss_function(logits, _draw_labels(logits)).backward()
        return [p.diag_ggn_mc for p in model.parameters() if p.requires_grad]

    return work


def _nngeometry(network: nn.Module, images: Tensor) -> Callable[[], object]:
    """NNGeometry's diagonal Fisher as its pages make it: exact over the classes, one backward pass for each but one."""
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object import PMatDiag

    loader = DataLoader(TensorDataset(images), batch_size=BATCH)
    layers = LayerCollection.from_model(network, ignore_unsupported_layers=True)
    return lambda: FIM(network, loader, PMatDiag, layer_collection=layers).get_diag()


def _nngeometry_monte_carlo(network: nn.Module, images: Tensor) -> Callable[[], object]:
    """NNGeometry's diagonal Fisher from one sampled label per image."""
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM_MonteCarlo
    from nngeometry.object import PMatDiag

    loader = DataLoader(TensorDataset(images), batch_size=BATCH)
    layers = LayerCollection.from_model(network, ignore_unsupported_layers=True)
    return lambda: FIM_MonteCarlo(network, loader, PMatDiag, trials=1, layer_collection=layers).get_diag()


def _opacus(network: nn.Module, images: Tensor) -> Callable[[], object]:
    """Opacus' gradients per image, squared and averaged."""
    from opacus import GradSampleModule

    # It records only layers in train mode, so all but the batch-norms are put there; nothing else of them changes.
    network.train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    model = GradSampleModule(network, loss_reduction="sum", strict=False)

    def work() -> list[Tensor]:
        model.zero_grad()
        logits = model(images)
        nn.functional.cross_entropy(logits, _draw_labels(logits), reduction="sum").backward()
        return [p.grad_sample.square().mean(0) for p in model.parameters() if p.requires_grad]

    return work
