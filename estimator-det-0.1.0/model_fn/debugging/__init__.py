"""What is saved of a training step that was not finite, and how it is run again."""
