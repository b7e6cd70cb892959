"""Pure functions that choose CPUs: evidence, attribution, domains, strategies, roles. Imports `agent.model` only."""
