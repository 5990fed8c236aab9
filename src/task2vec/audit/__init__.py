"""A report on a task: its images and labels, the measured error of a model, and what to do next.

The function `report` has the name of its file: import it from there, or as `task2vec.report`.
"""
