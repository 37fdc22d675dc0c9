"""TFRecord files as streams of serialized records, and the cursor in them."""
