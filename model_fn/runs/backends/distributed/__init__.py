"""The TF2 loop: steps under a strategy of `tf.distribute`, with the hooks of every run."""
