"""Takes whole configurations through everything a user does with them."""
