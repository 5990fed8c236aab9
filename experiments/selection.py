"""Choosing an expert, from errors that were measured before: tables and figures of the bundled meta-task."""

from experiments.commands.selection import app

if __name__ == "__main__":
    app()
