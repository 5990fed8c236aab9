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
    from task2vec.parallel import open_backend
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
    "open_backend",
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

__getattr__ = lazy_names(__name__)


def __dir__() -> list[str]:
    """The public names, including those not yet imported."""
    return sorted(__all__)
