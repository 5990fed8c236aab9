"""Which expert is the best for which task, measured."""

from experiments.commands.metatask import app

if __name__ == "__main__":
    app()
