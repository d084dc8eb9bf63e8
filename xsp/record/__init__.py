"""Records a program or a model while it runs; interprets nothing."""
