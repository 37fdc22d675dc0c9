"""Training steps that were not finite: their files, and their replay."""
