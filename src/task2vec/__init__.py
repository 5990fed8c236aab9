"""Task2Vec: a labelled image dataset becomes a vector.

The public names are listed here and are resolved on first use, so that `import task2vec` and `task2vec --help` cost
milliseconds: torch is imported when something is embedded, not before.

Example:
    >>> import task2vec as t2v
    >>> "read_folder" in dir(t2v)
    True
"""

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names, read_imports
from task2vec.version import __version__ as __version__

if TYPE_CHECKING:  # `as` makes a name public for type checkers (PEP 484)
    from task2vec import distance as distance
    from task2vec import errors as errors
    from task2vec.audit.corrections import apply_corrections as apply_corrections
    from task2vec.audit.report import TaskReport as TaskReport
    from task2vec.audit.report import report as report
    from task2vec.embedding import DomainEmbedding as DomainEmbedding
    from task2vec.embedding import Embedding as Embedding
    from task2vec.embedding import EmbedSettings as EmbedSettings
    from task2vec.embedding import TaskResult as TaskResult
    from task2vec.embedding import VariationalSettings as VariationalSettings
    from task2vec.embedding import embed as embed
    from task2vec.embedding import embed_batches as embed_batches
    from task2vec.embedding import embed_domain as embed_domain
    from task2vec.embedding import embed_many as embed_many
    from task2vec.embedding import load_embedding as load_embedding
    from task2vec.embedding import trivial as trivial
    from task2vec.experts import ErrorProtocol as ErrorProtocol
    from task2vec.experts import ExpertResult as ExpertResult
    from task2vec.experts import Recipe as Recipe
    from task2vec.experts import TrainedExpert as TrainedExpert
    from task2vec.experts import linear_error as linear_error
    from task2vec.experts import load_expert as load_expert
    from task2vec.experts import train_expert as train_expert
    from task2vec.experts import train_experts as train_experts
    from task2vec.experts.error_matrix import error_matrix as error_matrix
    from task2vec.library import Expert as Expert
    from task2vec.library import Library as Library
    from task2vec.library import MeasuredError as MeasuredError
    from task2vec.metatask import MetaTask as MetaTask
    from task2vec.metatask import ModelInfo as ModelInfo
    from task2vec.metatask import TaskInfo as TaskInfo
    from task2vec.metatask import bundled_metatask as bundled_metatask
    from task2vec.metatask import load_metatask as load_metatask
    from task2vec.metatask import metatask_from_library as metatask_from_library
    from task2vec.parallel import open_backend as open_backend
    from task2vec.probe import Probe as Probe
    from task2vec.probe import list_probes as list_probes
    from task2vec.probe import load_probe as load_probe
    from task2vec.select import Evaluation as Evaluation
    from task2vec.select import Recommendation as Recommendation
    from task2vec.select import fit_model_space as fit_model_space
    from task2vec.select import score_features as score_features
    from task2vec.select.evaluate import evaluate as evaluate
    from task2vec.select.evaluate import evaluate_proposals as evaluate_proposals
    from task2vec.select.recommend import recommend as recommend
    from task2vec.tasks import BadImage as BadImage
    from task2vec.tasks import Catalog as Catalog
    from task2vec.tasks import Task as Task
    from task2vec.tasks import TaskDefinition as TaskDefinition
    from task2vec.tasks import from_dataset as from_dataset
    from task2vec.tasks import join_tasks as join_tasks
    from task2vec.tasks import read_catalog as read_catalog
    from task2vec.tasks import read_folder as read_folder
    from task2vec.tasks import read_splits as read_splits
    from task2vec.tasks import read_table as read_table
    from task2vec.tasks import read_taxonomy as read_taxonomy
    from task2vec.tasks import sample_tasks as sample_tasks
    from task2vec.tasks import to_task as to_task
    from task2vec.tasks import toy_tasks as toy_tasks
    from task2vec.tasks.huggingface import from_huggingface as from_huggingface
    from task2vec.tasks.published import read_cub200 as read_cub200
    from task2vec.tasks.published import read_deepfashion as read_deepfashion
    from task2vec.tasks.published import read_imaterialist as read_imaterialist
    from task2vec.tasks.published import read_inaturalist as read_inaturalist
    from task2vec.tasks.taxonomy import Taxonomy as Taxonomy

__all__ = ["__version__", *sorted(read_imports(__name__))]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = lazy_names(__name__)


def __dir__() -> list[str]:
    """The public names, including those not yet imported."""
    return sorted(__all__)
