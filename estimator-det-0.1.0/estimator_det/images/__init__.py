"""What inputs and detectors both do to pixels."""
