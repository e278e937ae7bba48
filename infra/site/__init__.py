"""The site of the documentation, which `make docs` builds from `docs/`, the README and the docstrings."""
