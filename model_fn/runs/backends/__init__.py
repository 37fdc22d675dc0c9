"""Backends: what executes the steps of a run, behind one interface, `base.Backend`."""
