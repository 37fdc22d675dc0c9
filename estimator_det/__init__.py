"""estimator-det: object detection training, evaluation and export on `tf.estimator`."""

__version__ = "0.3.0"
