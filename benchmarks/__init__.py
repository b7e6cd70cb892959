"""What the agent costs, measured on the machine at hand: ``python -m benchmarks --help``."""
