"""Programs that users start: the command line, the demo, jobs and storage of Google Cloud."""
