"""`python -m task2vec` is the command line."""

import os
import sys

if __name__ == "__main__":
    # -m looks for modules in the folder that one stands in first: a stranger's dataset must not bring code.
    if sys.path and os.path.abspath(sys.path[0]) == os.getcwd():
        sys.path.pop(0)
    from task2vec.cli import main

    main()
