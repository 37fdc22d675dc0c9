"""Networks and their building blocks; importing the package builds nothing."""
