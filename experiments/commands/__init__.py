"""The command line of each experiment."""
