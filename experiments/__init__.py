"""The experiments of Achille 2019, one file or a few each, made with the public API as a user would."""
