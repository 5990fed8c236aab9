"""Many units of work, done in this process, by others of this machine or by a Ray cluster, with the same results."""

from task2vec.engine.choosing import ENGINES, borrow_engine, open_engine
from task2vec.engine.units import Engine, Failure, Result, Unit, Work

__all__ = ["ENGINES", "Engine", "Failure", "Result", "Unit", "Work", "borrow_engine", "open_engine"]
