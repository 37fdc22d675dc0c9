"""estimator-det: object detection training, evaluation and export on `tf.estimator`."""

__version__ = "0.1.0"
