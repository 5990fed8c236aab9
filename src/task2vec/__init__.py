"""Task2Vec: a labelled image dataset becomes a vector.

The public names live here and are resolved on first use, so that `import task2vec` and `task2vec --help` cost
milliseconds: torch is imported when something is embedded, not before.

Example:
    >>> import task2vec as t2v
    >>> "read_folder" in dir(t2v)
    True
"""

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec import distance, errors
    from task2vec.embedding import (
        DomainEmbedding,
        Embedding,
        EmbedSettings,
        TaskResult,
        VariationalSettings,
        embed,
        embed_batches,
        embed_domain,
        embed_many,
        load_embedding,
        trivial,
    )
    from task2vec.experts import ErrorMatrix, ErrorProtocol, error_matrix, linear_error
    from task2vec.experts.loading import TrainedExpert, load_expert
    from task2vec.experts.many import ExpertResult, train_experts
    from task2vec.experts.measured import MeasuredMetaTask, bundled_metatask, load_metatask
    from task2vec.experts.recipes import Recipe
    from task2vec.experts.training import train_expert
    from task2vec.library import Expert, Library, MeasuredError
    from task2vec.parallel import open_backend
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
        from_dataset,
        join_tasks,
        read_catalog,
        read_folder,
        read_inaturalist_taxonomy,
        read_splits,
        read_table,
        read_taxonomy,
        sample_tasks,
        toy_tasks,
    )
    from task2vec.tasks.cub200 import read_cub200
    from task2vec.tasks.deepfashion import read_deepfashion
    from task2vec.tasks.huggingface import from_huggingface
    from task2vec.tasks.imaterialist import read_imaterialist
    from task2vec.tasks.inaturalist import read_inaturalist
    from task2vec.tasks.taxonomy import Taxonomy

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
    "open_backend",
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

__getattr__ = lazy_names(__name__)


def __dir__() -> list[str]:
    """The public names, including those not yet imported."""
    return sorted(__all__)
