"""The verbs of `estimator-det`: a module each, with SUMMARY, EXAMPLE, add_arguments and run.

They import TensorFlow inside their functions, so that --help is fast.
"""
