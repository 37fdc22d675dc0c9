"""Speed of training on a GPU, beside torchvision's."""
