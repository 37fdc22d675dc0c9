"""Drawing: boxes on images, charts, and batches as a grid of images."""
