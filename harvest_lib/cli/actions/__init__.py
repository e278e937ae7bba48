"""What the commands do. A command's module loads its part when the command runs: imports here may be heavy."""
