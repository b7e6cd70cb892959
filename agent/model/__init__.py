"""Values: frozen, typed, without I/O. Everything else passes these around."""
