"""Processor time of each step of augmentation, and its ratio to that of its TensorFlow kernels."""
