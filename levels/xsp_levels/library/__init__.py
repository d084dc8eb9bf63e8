"""Library level: calls into oneDNN and the like."""
