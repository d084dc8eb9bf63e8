"""Programs around TensorFlow models: what a program does in, evaluations and parts between out."""
