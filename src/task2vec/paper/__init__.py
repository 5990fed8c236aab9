"""The experiments of Achille 2019, one file each, made with the public API alone, as a user would."""
