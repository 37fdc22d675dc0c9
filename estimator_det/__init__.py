"""estimator-det: object detection training, evaluation and export on `tf.estimator`."""

__version__ = "0.3.0"

# Programs set it before TensorFlow is imported: warnings and garbage collection of another
# process belong to that process.
is_program = False
