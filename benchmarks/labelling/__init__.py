"""Tools for labels, measured on shapes that are drawn."""
