"""Feature maps of several resolutions, made of a backbone's activations."""
