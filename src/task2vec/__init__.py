"""Task2Vec: a labelled image dataset becomes a vector.

The public names live here and are resolved on first use, so that `import task2vec` and `task2vec --help` cost
milliseconds: torch is imported when something is embedded, not before.

Example:
    >>> import task2vec as t2v
    >>> "read_folder" in dir(t2v)
    True
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from task2vec import distance, errors
    from task2vec.embedding import (
        DomainEmbedding,
        Embedding,
        EmbedSettings,
        TaskResult,
        VariationalSettings,
        embed,
        embed_domain,
        embed_many,
        load_embedding,
        trivial,
    )
    from task2vec.embedding.batches import embed_batches
    from task2vec.engine import open_engine
    from task2vec.experts import (
        ErrorProtocol,
        ExpertResult,
        MetaTask,
        ModelInfo,
        Recipe,
        TaskInfo,
        TrainedExpert,
        bundled_metatask,
        linear_error,
        load_expert,
        load_metatask,
        train_expert,
        train_experts,
    )
    from task2vec.experts.error_matrix import error_matrix
    from task2vec.library import Expert, Library, MeasuredError
    from task2vec.probe import Probe, list_probes, load_probe
    from task2vec.select import (
        Evaluation,
        Recommendation,
        fit_model_space,
        metatask_from_csv,
        metatask_from_library,
        score_features,
    )
    from task2vec.select.evaluate import evaluate
    from task2vec.select.recommend import recommend
    from task2vec.tasks import (
        BadImage,
        Catalog,
        Task,
        TaskDefinition,
        Taxonomy,
        from_dataset,
        from_huggingface,
        join_tasks,
        read_catalog,
        read_cub200,
        read_deepfashion,
        read_folder,
        read_imaterialist,
        read_inaturalist,
        read_inaturalist_taxonomy,
        read_splits,
        read_table,
        read_taxonomy,
        sample_tasks,
        toy_tasks,
    )

__version__ = "0.1.0"

__all__ = [
    "BadImage",
    "Catalog",
    "DomainEmbedding",
    "EmbedSettings",
    "Embedding",
    "ErrorProtocol",
    "Evaluation",
    "Expert",
    "ExpertResult",
    "Library",
    "MeasuredError",
    "MetaTask",
    "ModelInfo",
    "Probe",
    "Recipe",
    "Recommendation",
    "Task",
    "TaskDefinition",
    "TaskInfo",
    "TaskResult",
    "Taxonomy",
    "TrainedExpert",
    "VariationalSettings",
    "__version__",
    "bundled_metatask",
    "distance",
    "embed",
    "embed_batches",
    "embed_domain",
    "embed_many",
    "error_matrix",
    "errors",
    "evaluate",
    "fit_model_space",
    "from_dataset",
    "from_huggingface",
    "join_tasks",
    "linear_error",
    "list_probes",
    "load_embedding",
    "load_expert",
    "load_metatask",
    "load_probe",
    "metatask_from_csv",
    "metatask_from_library",
    "open_engine",
    "read_catalog",
    "read_cub200",
    "read_deepfashion",
    "read_folder",
    "read_imaterialist",
    "read_inaturalist",
    "read_inaturalist_taxonomy",
    "read_splits",
    "read_table",
    "read_taxonomy",
    "recommend",
    "sample_tasks",
    "score_features",
    "toy_tasks",
    "train_expert",
    "train_experts",
    "trivial",
]

# Which room each public name comes from; `None` stands for a room that is itself public.
_ROOMS: dict[str, str | None] = {
    "metatask_from_library": "select",
    "metatask_from_csv": "select",
    "TaskInfo": "experts",
    "ModelInfo": "experts",
    "MetaTask": "experts",
    "BadImage": "tasks",
    "Catalog": "tasks",
    "DomainEmbedding": "embedding",
    "EmbedSettings": "embedding",
    "Embedding": "embedding",
    "ErrorProtocol": "experts",
    "Evaluation": "select",
    "Expert": "library",
    "ExpertResult": "experts",
    "Library": "library",
    "MeasuredError": "library",
    "Probe": "probe",
    "Recipe": "experts",
    "Recommendation": "select",
    "Task": "tasks",
    "TaskDefinition": "tasks",
    "TaskResult": "embedding",
    "Taxonomy": "tasks",
    "TrainedExpert": "experts",
    "VariationalSettings": "embedding",
    "bundled_metatask": "experts",
    "distance": None,
    "embed": "embedding",
    "embed_batches": "embedding.batches",
    "embed_domain": "embedding",
    "embed_many": "embedding",
    "error_matrix": "experts.error_matrix",
    "errors": None,
    "evaluate": "select.evaluate",
    "fit_model_space": "select",
    "from_dataset": "tasks",
    "from_huggingface": "tasks",
    "join_tasks": "tasks",
    "linear_error": "experts",
    "list_probes": "probe",
    "load_embedding": "embedding",
    "load_expert": "experts",
    "load_metatask": "experts",
    "load_probe": "probe",
    "open_engine": "engine",
    "read_catalog": "tasks",
    "read_cub200": "tasks",
    "read_deepfashion": "tasks",
    "read_folder": "tasks",
    "read_imaterialist": "tasks",
    "read_inaturalist": "tasks",
    "read_inaturalist_taxonomy": "tasks",
    "read_splits": "tasks",
    "read_table": "tasks",
    "read_taxonomy": "tasks",
    "recommend": "select.recommend",
    "sample_tasks": "tasks",
    "score_features": "select",
    "toy_tasks": "tasks",
    "train_expert": "experts",
    "train_experts": "experts",
    "trivial": "embedding",
}


def __getattr__(name: str) -> object:
    """Return the public name, importing its room the first time (PEP 562)."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'task2vec' has no attribute {name!r}")
    room = _ROOMS[name]
    value = import_module(f"task2vec.{name}") if room is None else getattr(import_module(f"task2vec.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those not yet imported."""
    return sorted(__all__)
