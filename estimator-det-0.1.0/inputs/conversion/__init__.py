"""Makes records of the data sets that `inputs.datasets` reads, and COCO files of records."""
