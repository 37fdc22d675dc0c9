"""Non-maximum suppression of many classes: `multiclass` chooses between the kernels of the rest."""
