"""Meta-tasks: which expert is the best for which task? Here as definitions, before anything is read or trained."""

from dataclasses import dataclass

from task2vec.errors import UsageError
from task2vec.tasks.catalog import TaskDefinition


@dataclass(frozen=True)
class ExpertDefinition:
    """A feature extractor to be trained: on which task of which catalogue.

    Example:
        >>> colours = TaskDefinition(
        ...     "color", "attribute group", ("red", "blue"), {"train": 9}, (0, 1), is_multilabel=True
        ... )
        >>> expert = ExpertDefinition("color", "imaterialist", colours)
        >>> expert.is_multilabel
        True
    """

    name: str
    catalogue: str
    definition: TaskDefinition

    @property
    def is_multilabel(self) -> bool:
        """Whether it is trained to answer several questions about an image at once."""
        return self.definition.is_multilabel


@dataclass(frozen=True, repr=False)
class MetaTask:
    """Tasks, and experts to choose from for each of them.

    Attributes:
        name: What to call it.
        tasks: The catalogue's name and the definition of every task.
        experts: The experts that are trained on tasks.
        has_generic: Whether the generic expert (pretrained, not trained on any of the tasks) is one more to choose.
        errors: The test error of every task on every expert; None as long as nobody has measured it.

    Example:
        >>> crows, ducks = (
        ...     TaskDefinition(name, "family", ("a", "b"), {"train": 60}, members)
        ...     for name, members in (("Corvidae", (0, 1)), ("Anatidae", (2, 3)))
        ... )
        >>> experts = tuple(ExpertDefinition(one.name, "birds", one) for one in (crows, ducks))
        >>> birds = MetaTask("birds", (("birds", crows), ("birds", ducks)), experts)
        >>> birds
        MetaTask(birds, 2 tasks, 2 experts and the generic one)
        >>> sorted(birds.left_out)
        [(0, 0), (1, 1)]
    """

    name: str
    tasks: tuple[tuple[str, TaskDefinition], ...]
    experts: tuple[ExpertDefinition, ...]
    has_generic: bool = True
    errors: None = None

    def __post_init__(self):
        """Refuse what has the same task or expert twice."""
        tasks = [(catalogue, one.kind, one.name) for catalogue, one in self.tasks]
        experts = [(one.catalogue, one.definition.kind, one.definition.name) for one in self.experts]
        for what, given in (("task", tasks), ("expert", experts)):
            twice = [key for key in given if given.count(key) > 1]
            if twice or not given:
                wrong = f"has the {what} {twice[0]} twice" if twice else f"has no {what}"
                raise UsageError(f"the meta-task {self.name!r} {wrong}, so nothing can be chosen. Give each once.")

    def __repr__(self) -> str:
        """The meta-task in one line."""
        generic = " and the generic one" if self.has_generic else ""
        return f"MetaTask({self.name}, {len(self.tasks)} tasks, {len(self.experts)} experts{generic})"

    @property
    def left_out(self) -> frozenset[tuple[int, int]]:
        """Pairs of a task and an expert that was trained on the labels of that task: choosing it would prove nothing.

        That is so if both are of one catalogue and one table and have a class or an attribute in common: an order and
        the expert for it or for the class that it belongs to, a colour and the expert for colours. Experts that saw the
        same images under other labels stay.
        """
        return frozenset(
            (row, column)
            for row, (catalogue, task) in enumerate(self.tasks)
            for column, expert in enumerate(self.experts)
            if catalogue == expert.catalogue and _share_labels(task, expert.definition)
        )


def _share_labels(a: TaskDefinition, b: TaskDefinition) -> bool:
    """Whether two tasks of one catalogue have a class or an attribute in common."""
    return a.table == b.table and not set(a.members).isdisjoint(b.members)
