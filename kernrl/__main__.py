"""`python -m kernrl` is `kernrl`."""

from kernrl.cli import main

main()
