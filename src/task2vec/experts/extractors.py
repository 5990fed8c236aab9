"""What can stand for an expert: a probe, one that was trained here, or an entry of a library."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torch import Tensor

from task2vec.embedding.batching import Passes, Pixels, prepare_passes, tensor_cores
from task2vec.embedding.settings import EmbedSettings
from task2vec.errors import UsageError
from task2vec.experts.cost import count_multiplications, count_parameters
from task2vec.experts.loading import ExpertProbe, TrainedExpert, load_expert, name_architecture
from task2vec.library import Expert
from task2vec.probe import Probe
from task2vec.progress import Report
from task2vec.tasks import Images, Task

Extractor = Probe | TrainedExpert | Expert
# Which tasks an expert was trained on, by its name.
TrainedOn = Mapping[str, Task | Iterable[Task]]


def open_extractor(expert: Extractor, *, download: bool = False) -> Probe:
    """The network that gives features."""
    if isinstance(expert, TrainedExpert):
        return expert.probe
    return expert if isinstance(expert, Probe) else load_expert(expert, download=download)


def check_extractors(experts: Iterable[Extractor]) -> tuple[Extractor, ...]:
    """The experts, if each is one, and no two have one name."""
    found: dict[str, Extractor] = {}
    for expert in (experts,) if isinstance(experts, Extractor) else experts:
        if not isinstance(expert, Extractor):
            raise UsageError(
                f"a {type(expert).__name__} gives no features, so it is no expert. Pass what load_probe, train_expert "
                "or library.experts() give."
            )
        if expert.name in found:
            raise UsageError(
                f"two experts are called '{expert.name}', and their errors could not be told apart. Rename one: "
                "dataclasses.replace(expert, name=...)."
            )
        found[expert.name] = expert
    return tuple(found.values())


def describe_extractor(expert: Extractor) -> Expert:
    """What a library keeps of an expert; a network that it cannot load again is kept by name, for its errors."""
    if isinstance(expert, Expert):
        return expert
    if isinstance(expert, ExpertProbe) and expert.entry is not None:
        return replace(expert.entry, name=expert.name)
    if isinstance(expert, TrainedExpert) and expert.path is not None:
        return expert.entry()
    probe = open_extractor(expert)
    known = name_architecture(probe)
    source, location = ("file", f"module {type(probe.network).__name__}") if known is None else ("hub", known)
    task = expert.story["task_fingerprint"] if isinstance(expert, TrainedExpert) else None
    return Expert(
        expert.name,
        source,
        location,
        task=task,
        recipe={"network": probe.fingerprint, "weights": probe.source},
        parameters=count_parameters(probe.network),
        input_size=probe.size[0],
        cost=round(count_multiplications(probe.network, probe.size), 6),
    )


def judge_trivial(expert: Extractor, trained_on: TrainedOn | None = None) -> Callable[[Task], bool]:
    """Tells of a task whether the expert has seen images of it, so that its error says nothing about new ones.

    That is known of the very task that it was trained on, and of tasks that share an image with those in `trained_on`.
    """
    own = expert.story["task_fingerprint"] if isinstance(expert, TrainedExpert) else getattr(expert, "task", None)
    given = (trained_on or {}).get(expert.name, ())
    seen = {digest for task in ((given,) if isinstance(given, Task) else given) for digest in task.digests}
    return lambda task: task.fingerprint == own or not seen.isdisjoint(task.digests)


def prepare_features(
    probe: Probe,
    images: Images,
    *,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
) -> tuple[Passes, Pixels]:
    """A network made ready, and the images that it will see."""
    how = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    return prepare_passes(images, probe, settings=EmbedSettings(), **how)


def compute_features(passes: Passes, pixels: Pixels, report: Report) -> Tensor:
    """(n, d) pooled features of all images."""
    with tensor_cores(pixels.device):
        return passes.features(pixels, report)
