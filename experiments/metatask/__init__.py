"""Our own meta-task: which tasks and experts it has, how it is measured, and what it is worth."""
