"""`python -m harvest_lib.cli` runs the command `harvest`."""

from harvest_lib.cli import main

main()
