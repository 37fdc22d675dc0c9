"""CenterNet: objects, and their keypoints, as peaks of heatmaps."""
