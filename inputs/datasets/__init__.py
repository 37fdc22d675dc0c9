"""Readers of annotated data sets (converters), a writer of records, and the shapes of the demo."""
