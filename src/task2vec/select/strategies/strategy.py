"""What every strategy is: fitted on known tasks, asked about a new one."""

from typing import Protocol

from task2vec.select.evidence import Answer, Evidence, Question


class Fitted(Protocol):
    """A strategy that has seen the errors of some tasks."""

    def rank(self, question: Question) -> Answer:
        """How it ranks the experts of the evidence for a new task."""
        ...


class Strategy(Protocol):
    """A way of choosing experts."""

    @property
    def name(self) -> str:
        """As tables show it."""
        ...

    @property
    def looks_at_images(self) -> bool:
        """Whether every candidate must look at the task's images first, which costs a pass of each."""
        ...

    def fit(self, evidence: Evidence) -> Fitted:
        """Learns what can be learned from tasks whose errors are known.

        Raises:
            UndefinedScoreError: The evidence lacks what the strategy goes by; the message says what.
        """
        ...
