"""What an evaluation computes: metrics, and diagnostics that explain them."""
