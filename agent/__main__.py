"""``python -m agent`` is ``cpubind``."""

from agent.cli import main

main()
