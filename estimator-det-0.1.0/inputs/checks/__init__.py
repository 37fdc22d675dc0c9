"""Checks of records, while a model trains and before."""
