"""What people and machines look at: logs, tables and pictures of a plan."""
