"""`python -m harvest_lib.cli` is `harvest`."""

from harvest_lib.cli import main

main()
