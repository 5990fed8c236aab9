"""A report on a task: its images and labels, its difficulty, similar tasks, and which model to start from.

The function `report` has the name of its file: import it from there, or as `task2vec.report`.
"""
