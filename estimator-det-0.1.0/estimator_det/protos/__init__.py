"""Generated protocol buffer messages of pipeline configurations and label maps."""
