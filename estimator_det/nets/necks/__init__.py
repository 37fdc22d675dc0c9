"""Feature maps of several resolutions, computed from a backbone's activations."""
