"""A detector behind HTTP: batches of requests, versions that replace each other, and a page."""
