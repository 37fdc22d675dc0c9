"""Pictures: boxes on images, charts, and training batches as a grid."""
