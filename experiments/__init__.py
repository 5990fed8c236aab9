"""The experiments of Achille 2019, made with the public API alone, as a user would."""
