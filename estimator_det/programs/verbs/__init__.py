"""The verbs of `estimator-det`: a module each, with SUMMARY, EXAMPLE, add_arguments and run.

`add_arguments` adds the options of the verb to a parser, and `run` runs it; its exit code is
0 unless it returns another one. They import TensorFlow inside their functions, so that --help is
fast.
"""
