"""Many requests to a served model: its memory stays flat."""
