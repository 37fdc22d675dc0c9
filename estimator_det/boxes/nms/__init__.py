"""Non-maximum suppression of many classes; `multiclass` chooses the kernel."""
