"""Commands, run from the root of the repository: python -m launch.NAME --help."""
