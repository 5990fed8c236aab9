"""`python -m task2vec` is the command line."""

from task2vec.cli import main

if __name__ == "__main__":
    main()
