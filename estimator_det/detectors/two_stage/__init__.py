"""Detectors of two stages: Faster R-CNN, Mask R-CNN and R-FCN."""
