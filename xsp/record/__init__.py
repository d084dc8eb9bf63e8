"""Recording: what runs beside a program or a model while it is measured; interprets nothing."""
