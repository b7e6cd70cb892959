"""Everything that touches the Linux host. Readers take the host's root folder; writes go through `agent.node.host`."""
