"""A fingerprint stands for the weights, the image size and the transform, and for nothing else."""

import torch
from PIL import ImageOps

from task2vec.probe import load_probe
from tests.probe.conftest import odd, transform_to


def fingerprint(module, size=40, *more):
    return load_probe(module, head="fc", transform=transform_to(size, *more)).fingerprint


def test_the_head_and_the_order_of_loading_do_not_matter():
    module = odd()
    first = fingerprint(module)
    with torch.no_grad():
        module.fc.weight.zero_()
        module.norm.num_batches_tracked.add_(7)
    assert fingerprint(module) == first == fingerprint(odd())


def test_every_weight_matters():
    seen = {fingerprint(odd())}
    keys = [k for k in odd().state_dict() if not k.startswith("fc.") and not k.endswith("num_batches_tracked")]
    for key in keys:
        module = odd()
        tensor = module.state_dict()[key].view(-1)
        tensor[0] = torch.nextafter(tensor[0], torch.tensor(10.0))
        seen.add(fingerprint(module))
    assert len(seen) == 1 + len(keys)


def test_size_transform_and_geometry_matter_and_spelling_does_not():
    module, changed = odd(), odd()
    changed.dilated.padding, changed.dilated.dilation = (1, 1), (1, 1)
    assert fingerprint(changed) != fingerprint(module)
    assert len({fingerprint(module), fingerprint(module, 48), fingerprint(module, 40, ImageOps.invert)}) == 3
    spelt = load_probe(module, head="fc", transform=lambda image: transform_to(40)(image.copy())).fingerprint
    assert spelt == fingerprint(module)
