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
    from task2vec.experts import ErrorMatrix, ErrorProtocol, error_matrix, linear_error
    from task2vec.experts.loading import TrainedExpert, load_expert
    from task2vec.experts.many import ExpertResult, train_experts
    from task2vec.experts.measured import MeasuredMetaTask, bundled_metatask, load_metatask
    from task2vec.experts.recipes import Recipe
    from task2vec.experts.training import train_expert
    from task2vec.library import Expert, Library, MeasuredError
    from task2vec.probe import Probe, list_probes, load_probe
    from task2vec.select import score_features
    from task2vec.select.evaluation import Evaluation, evaluate
    from task2vec.select.evidence import Evidence
    from task2vec.select.evidence.shelves import from_library
    from task2vec.select.evidence.sources import from_measured
    from task2vec.select.evidence.tables import read_evidence
    from task2vec.select.recommendation import Recommendation
    from task2vec.select.recommendation.recommending import recommend
    from task2vec.select.strategies.model_space import fit_model_space
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
    "ErrorMatrix",
    "ErrorProtocol",
    "Evaluation",
    "Evidence",
    "Expert",
    "ExpertResult",
    "Library",
    "MeasuredError",
    "MeasuredMetaTask",
    "Probe",
    "Recipe",
    "Recommendation",
    "Task",
    "TaskDefinition",
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
    "from_library",
    "from_measured",
    "join_tasks",
    "linear_error",
    "list_probes",
    "load_embedding",
    "load_expert",
    "load_metatask",
    "load_probe",
    "open_engine",
    "read_catalog",
    "read_cub200",
    "read_deepfashion",
    "read_evidence",
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
    "BadImage": "tasks",
    "Catalog": "tasks",
    "DomainEmbedding": "embedding",
    "EmbedSettings": "embedding",
    "Embedding": "embedding",
    "ErrorMatrix": "experts",
    "ErrorProtocol": "experts",
    "Evaluation": "select.evaluation",
    "Evidence": "select.evidence",
    "Expert": "library",
    "ExpertResult": "experts.many",
    "Library": "library",
    "MeasuredError": "library",
    "MeasuredMetaTask": "experts.measured",
    "Probe": "probe",
    "Recipe": "experts.recipes",
    "Recommendation": "select.recommendation",
    "Task": "tasks",
    "TaskDefinition": "tasks",
    "TaskResult": "embedding",
    "Taxonomy": "tasks",
    "TrainedExpert": "experts.loading",
    "VariationalSettings": "embedding",
    "bundled_metatask": "experts.measured",
    "distance": None,
    "embed": "embedding",
    "embed_batches": "embedding.batches",
    "embed_domain": "embedding",
    "embed_many": "embedding",
    "error_matrix": "experts",
    "errors": None,
    "evaluate": "select.evaluation",
    "fit_model_space": "select.strategies.model_space",
    "from_dataset": "tasks",
    "from_huggingface": "tasks",
    "from_library": "select.evidence.shelves",
    "from_measured": "select.evidence.sources",
    "join_tasks": "tasks",
    "linear_error": "experts",
    "list_probes": "probe",
    "load_embedding": "embedding",
    "load_expert": "experts.loading",
    "load_metatask": "experts.measured",
    "load_probe": "probe",
    "open_engine": "engine",
    "read_catalog": "tasks",
    "read_cub200": "tasks",
    "read_deepfashion": "tasks",
    "read_evidence": "select.evidence.tables",
    "read_folder": "tasks",
    "read_imaterialist": "tasks",
    "read_inaturalist": "tasks",
    "read_inaturalist_taxonomy": "tasks",
    "read_splits": "tasks",
    "read_table": "tasks",
    "read_taxonomy": "tasks",
    "recommend": "select.recommendation.recommending",
    "sample_tasks": "tasks",
    "score_features": "select",
    "toy_tasks": "tasks",
    "train_expert": "experts.training",
    "train_experts": "experts.many",
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
