"""Times and memory beside the Object Detection API, on the same records, in turns."""
