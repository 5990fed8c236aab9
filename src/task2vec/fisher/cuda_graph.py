"""A training step replayed as a CUDA graph.

A step under noise is hundreds of small kernels, which Python takes four times as long to launch as the GPU to run. So
the first steps run as written, then one is recorded as a CUDA graph, and from there on a step is one launch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]
# Libraries choose their kernels and take their memory in the first steps, which cannot be recorded.
_WARM_UP = 3


class GraphedStep:
    """Calls `step`, which returns its loss; on a GPU from a recording, with the same results.

    The step must keep its state in tensors that it changes in place, and draw from `generator` only. One that cannot be
    recorded (it reads a value, or its batches change their size) runs as written.
    """

    def __init__(self, step: Step, generator: torch.Generator, *, is_recordable: bool = True):
        self.step, self.generator = step, generator
        self.is_recordable = is_recordable and generator.device.type == "cuda"
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of the step on this batch; overwritten by the next call."""
        self.calls += 1
        if not self.is_recordable:
            return self.step(images, targets)
        if self.calls <= _WARM_UP:
            return self._warm_up(images, targets)
        if self.graph is None:
            self._record(images, targets)
        if self.graph is None or images.shape != self.images.shape or targets.shape != self.targets.shape:
            return self.step(images, targets)
        self.images.copy_(images)
        self.targets.copy_(targets)
        self.graph.replay()
        return self.loss

    def _warm_up(self, images: Tensor, targets: Tensor) -> Tensor:
        """A step on a stream beside the usual one, where it will be recorded."""
        side = torch.cuda.Stream(images.device)
        side.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(side):
            loss = self.step(images, targets)
        torch.cuda.current_stream(images.device).wait_stream(side)
        return loss

    def _record(self, images: Tensor, targets: Tensor) -> None:
        self.images, self.targets = images.clone(), targets.clone()
        graph, spare = torch.cuda.CUDAGraph(), self.generator.clone_state()
        graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph):
                self.loss = self.step(self.images, self.targets)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # a layer that a graph cannot hold: slower, not wrong
            self.generator.graphsafe_set_state(spare)
            self.is_recordable = False
            return
        self.graph = graph
