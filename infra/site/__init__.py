"""The site of the documentation: `make docs` builds it from `docs/`, the README and the docstrings."""
