"""Cloud Storage, training jobs, and what a run in a cloud job needs.

Importing these modules imports nothing of google.cloud: functions that need it do.
"""
