"""Images per second of the TF2 loop on one and on two replicas of the CPU."""
