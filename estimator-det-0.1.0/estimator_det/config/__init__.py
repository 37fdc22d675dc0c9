"""Reading, merging, overriding, checking and saving pipeline configurations."""
